package main

// load and glance are arguments of a full run and of a quick run. load makes enough rounds for a
// reliable number on an idle machine. glance makes a single round, just to fill a row.
var (
	load   = []string{"-benchtime", "10x", "-bench.round=10000"}
	glance = []string{"-benchtime", "1x"}
)

// runs are all rows of the table, in its order.
var runs = []run{
	{"track", ".", "^BenchmarkTrack$/flushAt=250$", nil, []string{"-benchtime", "1000x"}, []value{
		{"`Track`, ten properties, uploads included", "Track/flushAt=250", "ns/op", " ns"},
		{"its allocations", "Track/flushAt=250", "allocs/op", ""},
		{"its time to that of `json.Marshal` of the message", "Track/flushAt=250", "x_json.Marshal", " x"},
		{"its time to that of a client written by hand for any map", "Track/flushAt=250", "x_baseline", " x"},
		{"its time to that of a client written by hand for these ten properties", "Track/flushAt=250", "x_shape", " x"},
	}},
	{"spooled", ".", "^BenchmarkTrackSpooled$/flushAt=250$", nil, []string{"-benchtime", "1000x"}, []value{
		{"`Track` with `SpoolDir`, to one without", "TrackSpooled/flushAt=250", "x_without", " x"},
	}},
	{"values", "internal/esjson", "^BenchmarkAppendValue$/value=ten$", nil, []string{"-benchtime", "1000x"}, []value{
		{"encoding ten properties, to `json.Marshal` of them", "AppendValue/value=ten", "x_json.Marshal", " x"},
	}},
	{"collector", "collector", "^BenchmarkHandler$/calls=100$/encoding=none$", nil, glance, []value{
		{"collector in process, batches of 100", "Handler/calls=100/encoding=none", "calls/s", " calls/s"},
	}},
	{"loopback", "collector", "^BenchmarkServer$", nil, glance, []value{
		{"collector over loopback, batches of 100", "Server", "calls/s", " calls/s"},
	}},
	{"deliveries", "webhook", "^BenchmarkDeliveries$//destinations=10?$/concurrency=64$", load, glance, []value{
		{"deliveries, store in memory, 1 destination", "Deliveries/store=mem/destinations=1/concurrency=64", "deliveries/s", "/s"},
		{"the same, to a bare `http.Transport`", "Deliveries/store=mem/destinations=1/concurrency=64", "x_bare", " x"},
		{"deliveries, store in memory, 10 destinations", "Deliveries/store=mem/destinations=10/concurrency=64", "deliveries/s", "/s"},
		{"the same at 10, to a bare `http.Transport`", "Deliveries/store=mem/destinations=10/concurrency=64", "x_bare", " x"},
		{"its processor time beyond that of the bare request", "Deliveries/store=mem/destinations=10/concurrency=64", "us_more", " us"},
		{"deliveries, store in files, each commit synced, 1 destination", "Deliveries/store=file/destinations=1/concurrency=64", "deliveries/s", "/s"},
		{"the same in files, to a bare `http.Transport`", "Deliveries/store=file/destinations=1/concurrency=64", "x_bare", " x"},
		{"deliveries, store in files, each commit synced, 10 destinations", "Deliveries/store=file/destinations=10/concurrency=64", "deliveries/s", "/s"},
		{"the same in files at 10, to a bare `http.Transport`", "Deliveries/store=file/destinations=10/concurrency=64", "x_bare", " x"},
		{"its processor time in files beyond that of the bare request", "Deliveries/store=file/destinations=10/concurrency=64", "us_more", " us"},
	}},
	{"batches", "webhook", "^BenchmarkBatches$", []string{"-benchtime", "30x", "-bench.round=10000"}, glance, []value{
		{"100 events in a request, store in memory, 1 destination", "Batches/store=mem", "batched/s", " events/s"},
		{"the same, to one event in a request", "Batches/store=mem", "x_single", " x"},
		{"100 events in a request, store in files, each commit synced", "Batches/store=file", "batched/s", " events/s"},
		{"the same in files, to one event in a request", "Batches/store=file", "x_single", " x"},
		{"processor time of such an event in files, without the receiver's", "Batches/store=file", "batched_us", " us"},
	}},
	{"ordered", "webhook", "^BenchmarkOrdered$", []string{"-benchtime", "5x", "-bench.round=10000"}, glance, []value{
		{"deliveries with 10,000 keys, store in memory, to those without", "Ordered/store=mem", "x_plain", " x"},
		{"the same with keys in files", "Ordered/store=file", "x_plain", " x"},
	}},
	{"behind", "webhook", "^BenchmarkBehind$", glance, glance, []value{
		{"a million behind one key in files: heap", "Behind", "heap-MB", " MB"},
		{"the same, `Open` after a crash to the first `Fetch`", "Behind", "first-s", " s"},
		{"the same, deliveries of other keys", "Behind", "beside/s", "/s"},
		{"those without the million", "Behind", "alone/s", "/s"},
		{"their p99 with the million", "Behind", "beside-p99-ms", " ms"},
		{"their p99 without it", "Behind", "alone-p99-ms", " ms"},
	}},
	{"post", "webhook/internal/wire", "^BenchmarkPost$", nil, []string{"-benchtime", "1000x"}, []value{
		{"one request on a kept connection", "Post/client=wire", "ns/op", " ns"},
		{"its allocations on a kept connection", "Post/client=wire", "allocs/op", ""},
		{"the same request by `net/http`", "Post/client=net/http", "ns/op", " ns"},
		{"its allocations by `net/http`", "Post/client=net/http", "allocs/op", ""},
	}},
	{"observer", "webhook", "^BenchmarkObserver$", []string{"-benchtime", "40x"}, glance, []value{
		{"deliveries with an `Observer` that does nothing, to those without", "Observer", "x_none", " x"},
	}},
	{"durable", "webhook", "^BenchmarkForwardDurable$", nil, []string{"-benchtime", "100x"}, []value{
		{"`Forward` until it is durable, one event a call, 64 goroutines", "ForwardDurable/store=file/batch=1/callers=64", "events/s", " events/s"},
		{"`ForwardEvents` until it is durable, 100 events a call, 16 goroutines", "ForwardDurable/store=file/batch=100/callers=16", "events/s", " events/s"},
	}},
	{"idle", "webhook", "^BenchmarkIdleLatency$", []string{"-benchtime", "1000x"}, []string{"-benchtime", "20x"}, []value{
		{"one event on an idle forwarder to its arrival, store in files, p50", "IdleLatency/store=file", "p50-ms", " ms"},
		{"the same in files, p99", "IdleLatency/store=file", "p99-ms", " ms"},
	}},
	{"lane", "webhook/internal/schedule", "^BenchmarkLane$", glance, glance, []value{
		{"heap of a destination that something waits for", "Lane", "waiting-B", " bytes"},
		{"heap of a destination that is idle", "Lane", "idle-B", " bytes"},
	}},
	{"isolation", "webhook", "^BenchmarkIsolation$",
		[]string{"-benchtime", "1x", "-isolation.destinations=10000", "-isolation.backlog=1000000", "-isolation.turns=30", "-isolation.turn=1s"}, glance, []value{
			{"1 destination of 10 hangs: the others' throughput, to that without", "Isolation/trouble=hang", "x_rate", " x"},
			{"the same with one that hangs, their p50, the inverse", "Isolation/trouble=hang", "x_p50", " x"},
			{"the same with one that hangs, their p99, the inverse", "Isolation/trouble=hang", "x_p99", " x"},
			{"100 destinations of 10,000 are dead, a million wait: the others' throughput", "Isolation/trouble=dead", "x_rate", " x"},
			{"the same with dead ones, their p50, the inverse", "Isolation/trouble=dead", "x_p50", " x"},
			{"the same with dead ones, their p99, the inverse", "Isolation/trouble=dead", "x_p99", " x"},
			{"a neighbour's backlog of a million drains: the others' throughput", "Isolation/trouble=backlog", "x_rate", " x"},
			{"the same with a backlog, their p99, the inverse", "Isolation/trouble=backlog", "x_p99", " x"},
			{"the same while another process posts at that rate", "Isolation/trouble=backlog", "ctl_p99", " x"},
		}},
	{"waiting", "webhook/filequeue", "^BenchmarkWaiting$//destinations=10000$", glance, glance, []value{
		{"a million waiting in files, 10,000 destinations: heap", "Waiting/deliveries=1000000/destinations=10000", "heap-MB", " MB"},
		{"the same million, `Open` after a crash to the first `Fetch`", "Waiting/deliveries=1000000/destinations=10000", "first-s", " s"},
		{"the same million, put", "Waiting/deliveries=1000000/destinations=10000", "puts/s", "/s"},
		{"the same million, fetched and settled", "Waiting/deliveries=1000000/destinations=10000", "drained/s", "/s"},
	}},
	{"erase", "webhook/filequeue", "^BenchmarkErase$", glance, glance, []value{
		{"a user with 10,000 of a million in files is erased", "Erase/kept=false", "erase-s", " s"},
		{"the longest `Put` beside the erasure", "Erase/kept=false", "beside-ms", " ms"},
		{"the longest `Put` without it", "Erase/kept=false", "alone-ms", " ms"},
		{"a user with 10,000 of a million that were delivered to 10,000 destinations is erased", "Erase/kept=true", "erase-s", " s"},
		{"the longest `Put` beside that", "Erase/kept=true", "beside-ms", " ms"},
		{"the longest `Put` afterwards", "Erase/kept=true", "alone-ms", " ms"},
		{"the same million: heap for each", "Erase/kept=true", "heap-B/kept", " B"},
		{"the same million, a page of 50 of one destination", "Erase/kept=true", "page-ms", " ms"},
		{"the same million, the oldest one by its id", "Erase/kept=true", "page-all-oldest-id-ms", " ms"},
	}},
	{"audience", "audience", "^BenchmarkAudience$/order=sorted$", []string{"-benchtime", "1x", "-audience", "1000000"}, glance, []value{
		{"an audience of a million members, created", "Audience/order=sorted", "created-members/s", " members/s"},
		{"the same audience, unchanged", "Audience/order=sorted", "unchanged-members/s", " members/s"},
		{"the same audience, 1 % changed", "Audience/order=sorted", "changed-members/s", " members/s"},
	}},
	{"postgres", "webhook/pgqueue", "^BenchmarkDeliveries$", []string{"-benchtime", "3x", "-bench.round=10000"}, glance, []value{
		{"deliveries, store in PostgreSQL, 1 destination, to a bare `http.Transport`", "Deliveries/destinations=1/concurrency=64", "x_bare", " x"},
		{"deliveries, store in PostgreSQL, 10 destinations, to a bare `http.Transport`", "Deliveries/destinations=10/concurrency=64", "x_bare", " x"},
	}},
	{"postgres-ordered", "webhook/pgqueue", "^BenchmarkOrdered$", []string{"-benchtime", "5x", "-bench.round=10000"}, glance, []value{
		{"deliveries with 10,000 keys, PostgreSQL, to those without", "Ordered", "x_plain", " x"},
	}},
	{"postgres-batches", "webhook/pgqueue", "^BenchmarkBatches$", []string{"-benchtime", "5x", "-bench.round=10000"}, glance, []value{
		{"100 events in a request, PostgreSQL", "Batches", "batched/s", " events/s"},
		{"the same in PostgreSQL, to one event in a request", "Batches", "x_single", " x"},
	}},
	{"postgres-erase", "webhook/pgqueue", "^BenchmarkErase$", []string{"-benchtime", "1x", "-kept", "1000000"}, glance, []value{
		{"a user with 10,000 of a million that are kept in PostgreSQL is erased", "Erase", "erase-s", " s"},
		{"the longest `Put` to PostgreSQL beside that", "Erase", "beside-max-ms", " ms"},
		{"the longest `Put` to PostgreSQL before", "Erase", "alone-max-ms", " ms"},
	}},
	{"postgres-list", "webhook/pgqueue", "^BenchmarkList$", []string{"-benchtime", "40x", "-listed", "1000000"}, glance, []value{
		{"ten million kept in PostgreSQL: a page of 50 of one of 10,000 destinations, p50", "List/one", "p50-ms", " ms"},
		{"the same ten million, until a time", "List/one,time", "p50-ms", " ms"},
		{"the same ten million, by an id", "List/one,id", "p50-ms", " ms"},
	}},
	{"postgres-idle", "webhook/pgqueue", "^BenchmarkIdleLatency$", []string{"-benchtime", "1000x"}, []string{"-benchtime", "20x"}, []value{
		{"one event on an idle forwarder to its arrival, PostgreSQL, p50", "IdleLatency", "p50-ms", " ms"},
		{"the same in PostgreSQL, p99", "IdleLatency", "p99-ms", " ms"},
	}},
	{"postgres-tx", "webhook/pgqueue", "^BenchmarkPutTx$", []string{"-benchtime", "3s"}, []string{"-benchtime", "20x"}, []value{
		{"a transaction that inserts a row, p50", "PutTx", "p50-ms-without", " ms"},
		{"the same with an event, by `PutTx`, p50", "PutTx", "p50-ms-with", " ms"},
	}},
	{"nats", "webhook/natsqueue", "^BenchmarkDeliveries$", []string{"-benchtime", "3x", "-bench.round=10000"}, glance, []value{
		{"deliveries, store in JetStream, one replica, 1 destination, to a bare `http.Transport`", "Deliveries/destinations=1/concurrency=64", "x_bare", " x"},
		{"deliveries, store in JetStream, one replica, 10 destinations, to a bare `http.Transport`", "Deliveries/destinations=10/concurrency=64", "x_bare", " x"},
	}},
	{"nats-ordered", "webhook/natsqueue", "^BenchmarkOrdered$", []string{"-benchtime", "5x", "-bench.round=10000"}, glance, []value{
		{"deliveries with 10,000 keys, JetStream, to those without", "Ordered", "x_plain", " x"},
	}},
	{"nats-batches", "webhook/natsqueue", "^BenchmarkBatches$", []string{"-benchtime", "5x", "-bench.round=10000"}, glance, []value{
		{"100 events in a request, JetStream", "Batches", "batched/s", " events/s"},
		{"the same in JetStream, to one event in a request", "Batches", "x_single", " x"},
	}},
	{"nats-idle", "webhook/natsqueue", "^BenchmarkIdleLatency$", []string{"-benchtime", "1000x"}, []string{"-benchtime", "20x"}, []value{
		{"one event on an idle forwarder to its arrival, JetStream, p50", "IdleLatency", "p50-ms", " ms"},
		{"the same in JetStream, p99", "IdleLatency", "p99-ms", " ms"},
	}},
	{"server", "soak/server", "^BenchmarkServer$", []string{"-benchtime", "10x", "-batches", "300"}, glance, []value{
		{"the whole server, batches of 100: calls accepted and delivered", "Server/deliver", "calls/s", " calls/s"},
		{"the same, to a bare `http.Transport` that posts as many bodies", "Server/deliver", "x_bare", " x"},
		{"the whole server: processor time of a call", "Server/deliver", "us/call", " us"},
		{"the whole server, its destination switched off: calls accepted", "Server/accept", "calls/s", " calls/s"},
	}},
}
