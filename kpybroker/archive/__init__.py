"""Topics as Parquet files that are kept: copied by Spark to any Hadoop file system, verified, and written back.

How a copy is committed
-----------------------
An archive is a folder (a URI of any Hadoop file system) that holds

    _archive/00000000000000000001.json ...                    manifests, numbered without a gap
    data/run=<number>-<random>/topic=/partition=/day=/*.parquet   records

What belongs to the archive is what its manifests name, and nothing else: readers never list `data`. A run copies the
offsets from where the manifests end to where the topic ends, in rounds of bounded size. A round

1. reads the manifests up to the newest, N, and plans the next range of offsets of each partition;
2. writes the records of those ranges under a run folder with a name nobody had before;
3. reads the files back: for each, its records, first and last offset, a checksum of the records and one of the bytes;
   together they must hold what was read from the topic, by number and checksum;
4. commits manifest N+1, which names ranges and files, by a step that makes the whole file or fails if it is there.

A run killed before step 4 leaves a run folder that no manifest names; after it, the round is done, and what follows
starts from its end. So nothing is lost, and nothing is there twice. Of two archivers that planned on N one commits N+1;
the other sees that it exists, deletes its own run folder and gives up. `clean` first commits an empty manifest, which
makes every round that is on its way fail in step 4, and deletes then what was left before.

Step 4 is a hard link on a local file system, a rename on HDFS and its like (both fail where the name exists), and
`create(overwrite=False)` on object stores. S3A makes that one conditional request from Hadoop 3.4.2 on (Spark 4.1 and
later); before, it looks and then writes, so that of two archivers in the same moment both may believe to have won. Each
manifest therefore has the digest of the one before it: that a manifest was replaced under the next one is seen by every
reader, and refused.

Offsets that no record has (compacted, transaction markers, aborted) are gaps within a range; a manifest has the number
of records beside the range. Offsets that the topic deleted before a run came to them are a gap between two ranges: the
manifest says so in `lost_from`, and whoever ran it is told.
"""
