module bursar.dev/bench

go 1.26
