"""The transaction coordinator: transactional ids, the partitions of their transactions, and the end markers."""
