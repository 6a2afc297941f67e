"""What can be proven about values: types, symbolic shapes, elements, and what the user asserts."""
