"""Knowledge bases for assistants, by the Model Context Protocol: tools and resources, over any transport."""
