"""The transaction coordinator: transactional ids, what they write to, and the markers that end a transaction."""
