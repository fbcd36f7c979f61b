"""Archives of topics in Parquet files: Spark copies records to any Hadoop file system, verifies them and writes them
back.

How a copy is committed
-----------------------
An archive is a folder (a URI of any Hadoop file system) that holds

    _archive/00000000000000000001.json ...                    manifests, numbered without a gap
    data/run=<number>-<random>/topic=/partition=/day=/*.parquet   records

Only the files that its manifests name belong to the archive: readers never list `data`. A run copies the records
between the last archived offset and the end of the topic, in rounds of bounded size. A round

1. reads the manifests up to the newest, N, and plans the next range of offsets of each partition;
2. writes the records of those ranges to a run folder with a unique name;
3. reads the files back, and checks that the number and the checksum of their records are those of the records that
   were read from the topic (the manifest also has the first and last offset and a checksum of the bytes of each file);
4. commits manifest N+1, which names ranges and files, atomically: this creates the whole file, or fails if it exists.

A run killed before step 4 leaves a run folder that no manifest names; after step 4, the round is complete, and the next
round starts at its end. So no record is lost or archived twice. If two archivers both planned from manifest N, one of
them commits N+1. The second one finds that N+1 exists, deletes its own run folder and exits with an error. `clean`
first commits an empty manifest, so that every round in progress fails in step 4, and then deletes the run folders that
no manifest names.

Step 4 is a hard link on a local file system, a rename on HDFS and similar file systems (both fail if the name exists),
and `create(overwrite=False)` on object stores. Since Hadoop 3.4.2 (Spark 4.1 and later), S3A does this in one
conditional request. Older versions check and then write, so two archivers that commit at the same moment may both
succeed. Therefore each manifest contains the digest of the previous manifest, so that every reader detects and rejects
a manifest that was replaced.

Offsets without a record (compacted or aborted records, transaction markers) are gaps within a range, so a manifest has
the range and the number of records. Offsets that the topic deleted before they were copied are a gap between two
ranges. The manifest stores the start of this gap as `lost_from`, and the run reports it.
"""
