"""What lists and pages say of methods, read from the methods themselves."""
