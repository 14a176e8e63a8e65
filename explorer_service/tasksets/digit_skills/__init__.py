"""Taskset `digit_skills`: four things to do with a few digits, checked exactly.

A prompt is a skill's letter, digits and `=`: `s5281=` asks to sort, and the answer is `1258`. One in eight strings of
digits is held out: it occurs in no training task, whatever the letter.
"""

from explorer_service.tasksets.digit_skills.skills import SKILLS, is_held_out
from explorer_service.tasksets.digit_skills.supervised import supervised_examples
from explorer_service.tasksets.digit_skills.taskset import DigitSkills

__all__ = ["SKILLS", "DigitSkills", "is_held_out", "supervised_examples"]
