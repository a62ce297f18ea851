"""How a program is played: its conversation, the closed loop that starts it, and its sub-programs."""
