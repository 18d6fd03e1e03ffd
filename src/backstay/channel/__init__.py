"""`stay.hub`: publish messages and job announcements, and listen for them."""
