"""Pages about plans: plan.html and map.html, from the tables of plan.json and map.json alone."""
