"""What the layers below say in English, in Chinese: tables of templates, and what matches sentences against them."""

from vramcast.report.chinese.matching import in_chinese, name_in_chinese

__all__ = ["in_chinese", "name_in_chinese"]
