"""MiniHack and NetHack: tasks in NetHack's dungeons, from the packages nle and minihack."""
