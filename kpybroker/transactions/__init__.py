"""The transaction coordinator: transactional ids, the partitions of their transactions, and the markers that end
them."""
