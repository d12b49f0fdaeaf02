"""Run model.stablehlo in JAX with the weights in weights.npz. Needs only requirements.txt."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from frame import HERE, Array, main
from jax import export


class Model:
    def __init__(self, config: dict[str, Any], arrays: list[Array]) -> None:
        jax.config.update("jax_platforms", config["device"])
        exported = export.deserialize(bytearray((HERE / "model.stablehlo").read_bytes()))
        with np.load(HERE / "weights.npz") as weights:
            given = ({name: weights[name] for name in weights.files}, arrays)
        leaves, tree = jax.tree.flatten(given)
        typed = [jnp.asarray(x, aval.dtype) for x, aval in zip(leaves, exported.in_avals, strict=True)]
        self.given = jax.device_put(jax.tree.unflatten(tree, typed))
        self.run = jax.jit(exported.call)
        self.result: Any = None
        self.call()

    def call(self) -> None:
        self.result = jax.block_until_ready(self.run(*self.given))

    def output(self) -> Array:
        return np.asarray(jax.tree.leaves(self.result)[0].astype(jnp.float32))


if __name__ == "__main__":
    main(Model)
