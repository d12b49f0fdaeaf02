"""Libraries of models: what a name such as timm:vit_base_patch16_224 stands for, and which inputs it takes."""
