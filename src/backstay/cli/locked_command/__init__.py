"""`backstay lock NAME -- COMMAND`: a process under a lock."""
