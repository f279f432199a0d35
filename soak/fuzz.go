package main

var fuzzes = []soak{
	// The client.
	{name: "fuzz-answer", dir: ".", fuzz: "FuzzAnswer", what: "any bytes as the answer to the client"},
	{name: "fuzz-rejections", dir: ".", fuzz: "FuzzRejections", what: "the list of rejected calls in an answer"},
	{name: "fuzz-track", dir: ".", fuzz: "FuzzTrack", what: "a message as the client encodes it"},
	{name: "fuzz-analyticstest", dir: "analyticstest", fuzz: "FuzzServeHTTP", what: "any body posted to the collector for tests"},
	{name: "fuzz-spool-open", dir: "internal/spool", fuzz: "FuzzOpen", what: "any bytes as a file of the spool"},
	{name: "fuzz-spool-damage", dir: "internal/spool", fuzz: "FuzzDamage", what: "a file of the spool with damage"},
	{name: "fuzz-events", dir: "signature", fuzz: "FuzzEvents", what: "any body as a batch of events"},
	{name: "fuzz-json-append", dir: "internal/esjson", fuzz: "FuzzAppend", what: "the encoder on JSON texts"},
	{name: "fuzz-json-value", dir: "internal/esjson", fuzz: "FuzzValue", what: "the encoder on Go values"},
	{name: "fuzz-time-append", dir: "internal/isotime", fuzz: "FuzzAppend", what: "times as they are written"},
	{name: "fuzz-time-parse", dir: "internal/isotime", fuzz: "FuzzParseJSON", what: "times as they are read"},
	{name: "fuzz-signature", dir: "signature", fuzz: "FuzzVerify", what: "a signature header"},
	{name: "fuzz-standard", dir: "signature", fuzz: "FuzzVerifyStandard", what: "the headers of Standard Webhooks"},
	{name: "fuzz-handler", dir: "signature", fuzz: "FuzzHandler", what: "requests to the verifying handler"},
	{name: "fuzz-retry-after", dir: "internal/retryafter", fuzz: "FuzzParse", what: "a Retry-After header"},

	// The forwarder.
	{name: "fuzz-record", dir: "webhook/store", fuzz: "FuzzDeliveryRecord", what: "stored deliveries and dead letters, and what is not one"},
	{name: "fuzz-settings", dir: "webhook", fuzz: "FuzzSettings", what: "settings of a destination, and the one request that comes of them"},
	{name: "fuzz-trace", dir: "event", fuzz: "FuzzParseTrace", what: "trace headers"},
	{name: "fuzz-host", dir: "webhook", fuzz: "FuzzHost", what: "hosts in URLs that somebody takes for addresses"},
	{name: "fuzz-public", dir: "webhook", fuzz: "FuzzPublic", what: "addresses that are not public, in all their forms"},
	{name: "fuzz-event", dir: "event", fuzz: "FuzzEncoder", what: "calls, as events and their bodies"},
	{name: "fuzz-wire", dir: "webhook/internal/wire", fuzz: "FuzzAnswer", what: "answers of receivers, read as net/http reads them"},

	// The store in a folder.
	{name: "fuzz-file-segment", dir: "webhook/filequeue", fuzz: "FuzzScan", what: "any bytes as a segment"},
	{name: "fuzz-file-hint", dir: "webhook/filequeue", fuzz: "FuzzHint", what: "any bytes as the hint of a segment"},

	// The server.
	{name: "fuzz-collector", dir: "collector", fuzz: "FuzzHandler", what: "any request to the collector"},
	{name: "fuzz-lines", dir: "cmd/hookferry/internal/admin", fuzz: "FuzzLines", what: "the lines of an uploaded list"},
	{name: "fuzz-listen", dir: "cmd/hookferry", fuzz: "FuzzListen", what: "any webhook sent to hookferry listen"},
	{name: "fuzz-config", dir: "cmd/hookferry/internal/config", fuzz: "FuzzDecode", what: "a configuration file"},

	// The store in NATS.
	{name: "fuzz-nats-stored", dir: "webhook/natsqueue", fuzz: "FuzzStored", what: "any bytes as a record, a member or a subject of a stream"},
	{name: "fuzz-nats-token", dir: "webhook/natsqueue", fuzz: "FuzzToken", what: "any name as a part of a subject"},
}
