"""What can be proven of values: types, symbolic shapes, elements, and what the user asserts."""
