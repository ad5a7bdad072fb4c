"""One module for each family of formats; `rag.parsing.parse` chooses among them."""
