"""Export an ensemble as one file that needs neither snapens nor the code of the model: ONNX, or `torch.export`."""

from .card import About as About
from .card import card_path as card_path
from .onnx import to_onnx as to_onnx
from .program import to_program as to_program
