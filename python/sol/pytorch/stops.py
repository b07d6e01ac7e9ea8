"""The operator through which no gradient flows: its result is its argument, and becomes a layer ``stop``.

    training_graph.py: detach(x)                    ->  stop(x)
                       f(x) inside of no_grad       ->  f(stop(x))

PyTorch's detach is a view, which other forms of the graph may lack (functional.py). An operator that PyTorch does not know stays.
"""

import torch

_library = torch.library.Library("sol_graph", "DEF")
_library.define("stop(Tensor x) -> Tensor")
_library.impl("stop", lambda x: x.clone(), "CompositeExplicitAutograd")

STOP = torch.ops.sol_graph.stop.default


def insert_stop(node, user):
    """Inserts a stop of ``node`` before ``user``, and returns it. Its example tensor is that of ``node``, whose memory it shares."""
    graph = node.graph
    with graph.inserting_before(user):
        stop = graph.call_function(STOP, (node,))
    stop.meta = {**user.meta, "val": node.meta["val"]}
    return stop


def import_stop(b, x, out=None):
    return b.layer("stop", x)


TABLE = {"sol_graph.stop.default": import_stop}
