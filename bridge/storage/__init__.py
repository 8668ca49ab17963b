"""Files wherever they lie: on this machine, in an object store, in HDFS."""
