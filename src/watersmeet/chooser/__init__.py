"""Which join fits what is known of the inputs, why, and what will bound its state."""
