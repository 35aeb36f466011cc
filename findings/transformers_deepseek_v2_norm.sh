#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# transformers 5.17.0 (torch 2.11.0): DeepseekV2Config(norm_topk_prob=True).
#
# Expected: the weights of a token's experts are divided by their sum, as they are for DeepSeek-V3, GLM-4.5 or Qwen3-MoE, whose
# configurations have the same field.
# Real: the router of DeepSeek-V2 does not read the field: the weights are those of norm_topk_prob=False, without a warning. The
# published checkpoints of DeepSeek-V2 have false; one that has true is computed wrong.
#
# Output seen (x86-64 Linux, no GPU, 2026-12-01):
#     deepseek_v2 false: sum of weights is not 1
#     deepseek_v2 true: sum of weights is not 1
#     deepseek_v3 false: sum of weights is not 1
#     deepseek_v3 true: sum of weights is 1
#
# Uses $TESSERA_PYTHON or python3 if it has this transformers, else python3 with venv and pip, which load 5 GB into a temporary
# folder. Exit status 0 while transformers behaves so, 1 when it does not any more, 77 where it cannot be had.
set -u
folder=$(mktemp -d) || exit 77
trap 'rm -rf "$folder"' EXIT
python=
for candidate in ${TESSERA_PYTHON:+"$TESSERA_PYTHON"} python3; do
    "$candidate" -c 'import torch, transformers; assert transformers.__version__ == "5.17.0"' 2>/dev/null || continue
    python=$candidate && break
done
if [ -z "$python" ]; then
    python3 -m venv "$folder/venv" >"$folder/log" 2>&1 &&
        "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.11.0 transformers==5.17.0 >>"$folder/log" 2>&1 ||
        { tail -n 1 "$folder/log" && exit 77; }
    python=$folder/venv/bin/python
fi
cat >"$folder/try.py" <<'END'
import importlib

import torch

for name, config_name, router_name in (("deepseek_v2", "DeepseekV2Config", "DeepseekV2TopkRouter"),
                                       ("deepseek_v3", "DeepseekV3Config", "DeepseekV3TopkRouter")):
    models = f"transformers.models.{name}."
    Config = getattr(importlib.import_module(models + "configuration_" + name), config_name)
    Router = getattr(importlib.import_module(models + "modeling_" + name), router_name)
    for is_normal in (False, True):
        torch.manual_seed(0)
        router = Router(Config(hidden_size=32, n_routed_experts=8, num_experts_per_tok=4, n_group=1, topk_group=1,
                               routed_scaling_factor=1.0, norm_topk_prob=is_normal))
        torch.nn.init.normal_(router.weight)
        _, weights, _ = router(torch.randn(5, 32))
        is_one = torch.allclose(weights.sum(-1), torch.ones(5))
        print(f"{name} {str(is_normal).lower()}: sum of weights is {'1' if is_one else 'not 1'}")
END
"$python" "$folder/try.py" >"$folder/seen" || exit 77
cat "$folder/seen"
cmp -s - "$folder/seen" <<'END' || { echo "transformers behaves otherwise now" && exit 1; }
deepseek_v2 false: sum of weights is not 1
deepseek_v2 true: sum of weights is not 1
deepseek_v3 false: sum of weights is not 1
deepseek_v3 true: sum of weights is 1
END
