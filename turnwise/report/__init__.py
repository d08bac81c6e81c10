"""What a person sees: tables now; metrics, trackers, statistics and pages as they come."""
