"""Masks -> the files of other tools: COCO, LabelMe, YOLO, NumPy."""
