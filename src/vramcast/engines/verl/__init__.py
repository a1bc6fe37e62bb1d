"""verl: a trainer and an engine that generates, on the same cards."""

from vramcast.engines.verl.card import card as card
