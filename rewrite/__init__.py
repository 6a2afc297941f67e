"""The rewriting engine: it knows no particular rule and no TVM.

Its folders depend on each other in this order, each only on those before it:

    symbolic <- graph <- storage <- facts <- engine
                                    facts <- running

- `symbolic`: arithmetic on symbolic sizes.
- `graph`: nodes, values and bodies; def-use chains; control-flow nodes by role.
- `storage`: files and protos; converts them to graphs and back.
- `facts`: what is proven about values; what the user asserts.
- `engine`: rules, patches, the fixpoint over phases, the trace.
- `running`: models on onnxruntime; generated inputs; comparison of outputs.

`errors` and `garbage_collection` depend on nothing. No two files import each other, directly or
through others. tests/test_package.py checks both.
"""
