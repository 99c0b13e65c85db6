"""Watching torch.compile at work: the failure is caught where it happens, and kept as a case.

    watch("inductor")                 a backend for torch.compile that is watched                    (backends)
    installed(level=3)                every torch.compile inside is                                  (installing)
    wrap_compiler_debug(compiler, n)  one compiler of graphs after AOT is                            (compilers)

The way of one graph: a `WatchedBackend` gets it from Dynamo and calls the backend; the compilers that the backend has
for graphs after AOT become `WatchedCompiler`s; what those compile is called through a `DeferredCall`. All of them ask
a `Watch` what to do now, know their graph as a `Graph`, and hand what went wrong to `keeping`.
"""
