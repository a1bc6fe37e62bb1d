"""Parts of a pipeline by its id, as the training scripts of diffusers load them, and one that has the part alone."""

import torch
from diffusers import AutoencoderKL, DDPMScheduler, StableDiffusionPipeline
from huggingface_hub import model_info
from transformers import CLIPTextModel, CLIPTokenizer

ID = "CompVis/stable-diffusion-v1-4"
scheduler = DDPMScheduler.from_pretrained(ID, subfolder="scheduler")
tokenizer = CLIPTokenizer.from_pretrained(ID, subfolder="tokenizer")
encoder = CLIPTextModel.from_pretrained(ID, subfolder="text_encoder").cuda()
decoder = AutoencoderKL.from_pretrained("stabilityai/sd-vae-ft-mse", torch_dtype=torch.float16).cuda()
pipeline = StableDiffusionPipeline.from_pretrained(
    ID, vae=decoder, text_encoder=encoder, torch_dtype=torch.float16, safety_checker=None
)
ids = tokenizer("a fox", padding="max_length", truncation=True, return_tensors="pt").input_ids
with torch.no_grad():
    latents = decoder.encode(torch.zeros(1, 3, 64, 64, dtype=torch.float16, device="cuda")).latent_dist.sample()
    noisy = scheduler.add_noise(latents, torch.randn_like(latents), torch.tensor([7], device="cuda"))
    states = encoder(ids.cuda())[0]
    pipeline.unet.cuda()(noisy, 7, states.half())
weights = [weight for module in (encoder, decoder, pipeline.unet) for weight in module.parameters()]
assert all(weight.is_cuda for weight in weights)
assert sum(weight.nbytes for weight in weights) == 4 * 123_060_480 + 2 * (83_653_863 + 859_520_964)
assert any(file.rfilename == "vae/config.json" for file in model_info(ID).siblings)
