"""Workflows in n8n's real engines: n8n-core, n8n-workflow and n8n-nodes-base of n8n 1 and 2, without a server.

    def test_it(n8n_lab):
        done = n8n_lab.run([workflow], start="My workflow", items=[{"json": {"a": 1}}])
        assert done.status == "success"
        assert done.items == [{"a": 1}]

The lab does what n8n's server does around its engine: sub-workflows, error workflows, timeouts, stops. It has no
database: a Wait of 65 seconds or more ends the execution as `waiting`.
"""
