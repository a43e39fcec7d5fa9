"""Settings that are refused before anything is computed: a line each, whose answer stands on the page of messages."""

from __future__ import annotations

import shlex

import golden_messages
import pytest

from trainer.api import check
from trainer.errors import ConfigError

# Section of the page: the overrides that all its lines share, and the lines.
SETTINGS: dict[str, tuple[str, str]] = {
    "Overrides of the trainer": (
        "",
        """
stage2.max_stps=3
stage1_9.saliency.inital_k=0.1
model.name=x
model=tinny
data=webtext
optimizer@stage2.optimizer=moun
+stage2.extra=1
~seed
stage2.max_steps=many
seed="'3'"
stage2.max_steps=1e3
stage2.max_steps=true
stage1_9.saliency.enabled=1
stage1_9.max_steps=null
stage2.optimizer.lr=inf
stage2.optimizer.lr=0
stage1_9.optimizer.lr=-1e-3
stage2.max_steps=-1
stage2.optimizer.type=sgd
hydra/launcher=basic
optimizer=adamw
+optimizer=adamw
stage2.optimizer=adamw
seed
wandb.tags=[a
wandb.tags=[a,3]
stage1_9.saliency=3
model=hf
run_dir='${oc.env:NO_SUCH_VARIABLE}'
memory_log.phases=[save,save]
hooks.names=[bleu]
hooks.names="['a:f','b:f']"
hooks.names=[lm_eval]
""",
    ),
    "Stages of the trainer": (
        "",
        """
stage1_9.loss_type=l1
stage1_9.layer_weights=later
stage1_9.layer_weights=[1,2]
stage1_9.layer_weights=[1,2,3,4,5]
stage1_9.layer_weights=[]
stage1_9.layer_weights=[0,0,0,0]
stage1_9.layer_weights=[1,2,-1,4]
stage1_9.layer_weights=[1,2,inf,4]
stage1_9.layer_weights="'[1,2,NaN,4]'"
stage1_9.layer_weights=[1,2,true,4]
stage1_9.layer_weights=3
stage1_9.layer_weights=[1,2,3,4] stage1.keep_layers=2
stage1.keep_layers=0
stage1_9.distill_schedule.type=step
stage1_9.distill_schedule.final=-1
stage1_9.lm_loss_weight=0 stage1_9.distill_schedule.initial=0
stage1_9.lm_loss_weight=1.5
stage2.max_steps=20
stage2.lambda_warmup.weights=false stage2.lambda_warmup.activations=false
stage2.lambda_warmup.start=-0.1
stage2.lambda_warmup.start=1.1
stage2.lambda_warmup.start=nan
stage2.lambda_warmup.start=null
quant.group_size=48
quant.group_size=64 model.intermediate_size=96
quant.group_size=0
quant.weight_scale=absmax
quant.activations=int4
quant.activations=none stage2.lambda_warmup.weights=false
stage1_9.micro_batch_size=5
model.teacher.micro_batch_size=5
stage2.trunk_every=-1
stage2.trunk_every=[0]
stage2.trunk_every=[2,-1]
stage2.trunk_every=2.5
stage2.trunk_every=often
stage2.optimizer.weight_decay_until=1.5
stage2.optimizer.weight_decay_until=-0.1
stage2.optimizer.weight_decay_until=nan
stage2.optimizer.base_tokens=0
stage2.optimizer.base_batch_tokens=many
stage2.optimizer.tokens_exponent=-32
stage2.optimizer.batch_exponent=nan
stage2.optimizer.base_tokens=1e300 stage2.optimizer.base_batch_tokens=1e300 stage2.optimizer.tokens_exponent=1
stage2.optimizer.type=adamw_8bit stage2.optimizer.stochastic_rounding=true
average.type=ema stage2.max_steps=0
average.type=last average.steps=201
average.decay=1.0
average.steps=0
eval.at=[0.0]
eval.at=[0.5,1.5]
eval.at=[nan]
eval.every_steps=-1
eval.part_batches=0
eval.part_batches=1 eval.batch_size=1
""",
    ),
    "Devices of the trainer": (
        "",
        """
device=tpu
device.threads=0
device.threads=99999999
device.parallel=fsdp stage1_9.optimizer.type=adamw_8bit
device.parallel=ddp device.compile=true
device.mesh.tensor=0
device.mesh.tensor=2
device=xla device.mesh.data=2
device.parallel=fsdp device.mesh.tensor=3
device.parallel=fsdp device.mesh.tensor=2 data.sequence_length=33
device.parallel=fsdp device.mesh.tensor=2 stage2.fp8=true
device.teacher=host device.compile=true
device=xla device.teacher=host
device.teacher=disk
device.teacher=sharded
device=xla device.parallel=fsdp device.teacher=sharded
device=xla device.num_chips=1 device.parallel=fsdp
device.parallel=ddp stage3.max_steps=200 stage3/teacher=http stage3.attention_weight=0 stage3.teacher.url=http://h stage3.teacher.model=m
""",
    ),
    "Text of the trainer": (
        "",
        """
data.name=wikitext
data.name="''"
data.tokenizer="''"
data.tokenizer=5
data.vocab_size=256
data.vocab_size=1024.0
data.vocab_size=true
data.vocab_size=null
~data.vocab_size
~data.max_bytes
data.sequence_length=1
data.sequence_length=-128
data.sequence_length="'128'"
data.held_out_fraction=0.0
data.held_out_fraction=1.0
data.held_out_fraction=5
data.held_out_fraction=nan
data.held_out_fraction=inf
data.held_out_fraction=5%
data.held_out_fraction=true
data.test_fraction=0.0
data.test_fraction=0.95
data.test_fraction=nan
data.max_bytes=0
data.max_bytes=1e6
data.files=shards
data=parquet
data=hub
data=parquet data.files="''"
data=parquet data.files=[]
data=parquet data.files=[a,5]
data=parquet data.files=5
data=fineweb data.name=parquet
data=fineweb data.split="''"
""",
    ),
    "Text that the trainer streams": (
        "data=parquet data.files=shards",
        """
data.text_key=null
data.lanes=0
data.shuffle_windows=0
data.held_out_tokens=0
data.held_out_fraction=1.0
data.test_tokens=0
data.test_fraction=0.98
data.held_out_fraction=0.99
data.max_bytes=100
""",
    ),
    "Stage 3": (
        "stage3.max_steps=200",
        """
stage3.attention_layer=4
stage3.attention_layer=-5
stage1.keep_layers=1 stage3.attention_layer=1
stage3.logits_weight=0.0 stage3.attention_weight=0.0
stage3.temperature=0.0
stage3.temperature=inf
stage3.logits_weight=-1.0
stage3.attention_relation=dot
stage3.micro_batch_size=3
stage3.teacher.kind=other
stage3.teacher.kind=http
stage3/teacher=http
stage3/teacher=htp
stage3.teacher.url=http://a
""",
    ),
    "A teacher over HTTP": (
        "stage3.max_steps=200 stage3/teacher=http stage3.attention_weight=0 stage3.teacher.model=m stage3.teacher.url=http://host:8000",
        """
stage3.attention_weight=1.0
stage3.teacher.url=http://me:pw@host:1
stage3.teacher.url=file:///x
stage3.teacher.url="'localhost:8000'"
stage3.teacher.url="'http://'"
stage3.teacher.url="'http://host?key=pw'"
stage3.teacher.url=http://host:99999
stage3.teacher.top_k=0
stage3.teacher.patience_s=inf
stage3.teacher.api_key_env=sk-abc
stage3.teacher.api_key_env=1234
stage3.teacher.top_p=1
data.document_masks=true
""",
    ),
    "A cache of the teacher": (
        "stage3.max_steps=200 stage3/teacher=cached stage3.attention_weight=0 stage3.teacher.path=here",
        """
stage3.attention_weight=1.0
stage3.teacher.top_k=0
stage3.teacher.negatives=-1
stage3.teacher.dtype=bfloat16
stage3.teacher.cross_entropy=none
stage3.teacher.path="''"
stage3.teacher.anchor_weight=1.0
stage3.teacher.url=http://a
""",
    ),
    "Recovery": (
        "recovery.max_steps=4 recovery.batch_size=4 recovery.schedule.warmup_steps=1",
        """
optimizer@recovery.optimizer=muonclip
recovery.optimizer.stochastic_rounding=true
average.type=ema
device.parallel=fsdp
recovery.micro_batch_size=3
recovery.schedule.warmup_steps=9
recovery.rank=0
recovery.alpha=0.0
recovery.targets=head
""",
    ),
    "Freezing parameters": (
        "auto_freeze.enabled=true auto_freeze.every_steps=1 auto_freeze.start_step=2 auto_freeze.patience=1 auto_freeze.threshold=1e9",
        """
device.parallel=ddp
auto_freeze.patience=5000
auto_freeze.every_steps=150
auto_freeze.threshold=0
auto_freeze.parameters=[]
""",
    ),
}


@pytest.mark.parametrize("section", SETTINGS)
def test_each_is_refused_in_one_line_as_the_page_says(section: str) -> None:
    shared, lines = SETTINGS[section]
    messages = []
    for line in lines.split("\n")[1:-1]:
        given = f"{shared} {line}".strip()
        with pytest.raises(ConfigError) as refused:
            check(shlex.split(given))
        message = str(refused.value)
        assert len(message.splitlines()) == len(refused.value.errors), line
        # What may be a secret in the wrong place is not repeated.
        assert not any(secret in message for secret in ("pw", "sk-abc", "1234")), line
        # The page has what all share once.
        messages.append((f"`… {line}`" if shared and messages else f"`{given}`", message))
    golden_messages.compare(section, messages)
