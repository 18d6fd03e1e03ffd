"""Operations of stores with tables of their own, pipelined."""
