"""Workflows in n8n's real engines: n8n-core, n8n-workflow and n8n-nodes-base of n8n 1 and 2, without a server.

    def test_it(n8n_lab):
        done = n8n_lab.run([workflow], start="My workflow", items=[{"json": {"a": 1}}])
        assert done.status == "success"
        assert done.items == [{"a": 1}]

What n8n's server does around its engine is done by the lab in the same way: sub-workflows, error workflows, timeouts,
a stop. It has no database: a Wait of 65 seconds or more ends the execution as `waiting`.
"""
