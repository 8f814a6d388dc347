"""What a service under load is asked, part by part."""
