"""The explorer: tasks → rollouts → rewards → experiences."""
