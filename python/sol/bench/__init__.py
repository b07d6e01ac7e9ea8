"""``python -m sol.bench``: times SOL beside other inference engines, on this machine, on your networks.

    target     what to run: a function of yours, or a name on a list of networks
    peers      the other engines; each is optional, and named when it is missing
    timing     the protocol: engines take turns, block by block, and medians are compared
    load       how busy other work keeps the machine meanwhile
    network    everything about one network, in a process of its own
    limit      how fast this machine could run a network at best
    machine    what the figures were measured on
    table      results on the terminal and in README; `chart` as a picture

Each of them works without the others; `python -m sol.bench --help` has the options.
"""
