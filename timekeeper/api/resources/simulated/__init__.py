"""What a simulation reads and answers, and the pods of owners."""
