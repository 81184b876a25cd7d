"""PANet (Wang et al., "PANet: Few-Shot Image Semantic Segmentation with Prototype Alignment", ICCV 2019)."""
