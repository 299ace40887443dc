"""PRU language models in Hugging Face Transformers.

``import torch_pru.hf`` registers the classes, after which ``AutoConfig``, ``AutoModel``,
``AutoModelForCausalLM`` and ``AutoTokenizer`` load what ``pru export RUN --to hf DIR`` has written.

Example:
    >>> import torch_pru.hf
    >>> from transformers import AutoModelForCausalLM, AutoTokenizer
    >>> model = AutoModelForCausalLM.from_pretrained("exported")            # doctest: +SKIP
    >>> tokenizer = AutoTokenizer.from_pretrained("exported")               # doctest: +SKIP
"""

try:
    import transformers
except ImportError as error:
    raise ImportError("torch_pru.hf needs transformers; pip install 'torch-pru[hf]'") from error

from torch_pru.hf.configuration import PRUConfig
from torch_pru.hf.modeling import PRUCache, PRUForCausalLM, PRUModel, PRUPreTrainedModel

transformers.AutoConfig.register(PRUConfig.model_type, PRUConfig, exist_ok=True)
transformers.AutoModel.register(PRUConfig, PRUModel, exist_ok=True)
transformers.AutoModelForCausalLM.register(PRUConfig, PRUForCausalLM, exist_ok=True)

__all__ = ["PRUCache", "PRUConfig", "PRUForCausalLM", "PRUModel", "PRUPreTrainedModel"]
