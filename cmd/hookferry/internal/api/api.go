// Package api has the paths and the JSON of the admin API, and its client. The
// OpenAPI document says what each path does.
//
// Times are RFC 3339 in UTC; unknown ones are left out. Durations are in
// milliseconds. Names in paths are percent-encoded. No answer has secrets, write
// keys, or values of headers that may be credentials.
package api

import (
	"encoding/json"
	"time"
)

// The paths, for http.ServeMux. Listings that may be long come in pages, by ?limit=
// and ?after=.
const (
	StatusPath         = "/api/v1/status"                                                  // GET: Status
	NodesPath          = "/api/v1/nodes"                                                   // GET: Nodes
	SourcesPath        = "/api/v1/sources"                                                 // GET ?q=&limit=&after=: Sources
	DestinationsPath   = "/api/v1/destinations"                                            // GET ?q=&source=&state=&sort=&limit=&after=: Destinations
	DestinationPath    = "/api/v1/destinations/{destination}"                              // GET: Destination; PUT and PATCH ?by=&version= a document: Destination; DELETE ?waiting=keep|discard&by=&version=: Changed
	SecretsPath        = "/api/v1/destinations/{destination}/secrets"                      // POST ?by=&version=: NewSecret; DELETE ?by=&version=: Destination
	PausePath          = "/api/v1/destinations/{destination}/pause"                        // POST: Destination
	ResumePath         = "/api/v1/destinations/{destination}/resume"                       // POST: Destination
	SeriesPath         = "/api/v1/series"                                                  // GET ?destination=&range=5m|1h|24h: Series
	EventsPath         = "/api/v1/events"                                                  // GET ?destination=&type=&kind=&q=&limit=: Events
	LivePath           = "/api/v1/events/live"                                             // GET ?after= a seq, and the others of EventsPath: a stream of Live
	StoryPath          = "/api/v1/story"                                                   // GET ?destination=&id=[&source=]: Story
	DeliveredPath      = "/api/v1/delivered"                                               // GET ?limit=&after= and those of DeliveredFilter: Delivered
	ResendPath         = "/api/v1/delivered/resend"                                        // POST DeliveredFilter: a stream of Progress
	DeadPath           = "/api/v1/dead"                                                    // GET ?limit=&after= and those of DeadFilter: Dead
	DeadCountPath      = "/api/v1/dead/count"                                              // GET, those of DeadFilter: Count
	DeadLetterPath     = "/api/v1/dead/{key}"                                              // GET: DeadLetter
	ReplayPath         = "/api/v1/dead/replay"                                             // POST Selection: a stream of Progress
	DiscardPath        = "/api/v1/dead/discard"                                            // POST Selection: a stream of Progress
	WaitingPath        = "/api/v1/waiting"                                                 // GET ?limit=&after= and those of WaitingFilter: Waiting
	WaitingRetryPath   = "/api/v1/waiting/retry"                                           // POST WaitingFilter: Changed
	WaitingDiscardPath = "/api/v1/waiting/discard"                                         // POST WaitingFilter: Changed
	TestPath           = "/api/v1/test"                                                    // POST TestRequest: TestResult
	DeletionsPath      = "/api/v1/deletions"                                               // POST Deletion: a stream of Progress
	ErasuresPath       = "/api/v1/erasures"                                                // POST Erasure: Erased
	AudiencesPath      = "/api/v1/audiences"                                               // GET ?destination=&q=&limit=&after=: Audiences; POST Audience: Audience
	MembersPath        = "/api/v1/destinations/{destination}/audiences/{audience}/members" // GET: lines; PUT lines: a stream of Progress
	AccessPath         = "/api/v1/access"                                                  // GET, without a token: Access
	OpenAPIPath        = "/api/v1/openapi.json"
)

// A stream is one JSON value a line, each flushed at once. Empty lines keep the
// connection alive: a line comes at least every KeepAlive.
const (
	StreamType = "application/x-ndjson"
	KeepAlive  = 15 * time.Second
)

// LinesType is the type of lists of users: one id a line, in UTF-8.
const LinesType = "text/plain"

// Error is the body of every answer that is not 2xx, and may end a stream.
type Error struct {
	Code    string `json:"code"`            // one of those below, which stay
	Message string `json:"message"`         // what is wrong, with the name of the field
	Field   string `json:"field,omitempty"` // the field that is wrong, if it is one
}

// The codes of errors.
const (
	CodeBadRequest   = "bad_request"
	CodeUnauthorized = "unauthorized"
	CodeForbidden    = "forbidden"
	CodeNotFound     = "not_found"
	CodeConflict     = "conflict"
	CodeTooLarge     = "too_large"
	CodeUnsupported  = "unsupported"
	CodeUnavailable  = "unavailable"
	CodeInternal     = "internal"
)

// Access says whether the rest of the API would answer a request with the same
// headers: it carries the token, or the API needs none.
type Access struct {
	Granted bool `json:"granted"`
}

// Status says how the server is.
type Status struct {
	Version string    `json:"version"`
	Node    string    `json:"node"` // its name among the servers of its store
	Started time.Time `json:"started"`
	Now     time.Time `json:"now"`
	Ready   bool      `json:"ready"` // the server accepts calls, as /readyz says
	Config  Config    `json:"config"`
	Send    Send      `json:"send"`
	Calls   Calls     `json:"calls"`
	Totals  Totals    `json:"totals"`
	// Waiting, Claimed and Dead count what is in the store.
	Waiting int              `json:"waiting"`
	Claimed int              `json:"claimed"`         // of those that wait: taken by a server to attempt
	Dead    int              `json:"dead"`            // dead letters
	Oldest  time.Time        `json:"oldest,omitzero"` // when the first that is not claimed was due
	Errors  map[string]int64 `json:"errors"`          // failed requests of the last hour, by reason
	Rates   Rates            `json:"rates"`
	Memory  int64            `json:"memory"` // the Go heap, in bytes
}

// Nodes lists the servers of a store, in the order they were started.
type Nodes struct {
	Shared bool   `json:"shared"` // several servers may share the store
	Nodes  []Node `json:"nodes"`
}

// A Node is a server. The fields from Version on come with its heartbeat; a server
// of another version may leave them out.
type Node struct {
	Name string    `json:"name"`           // the host's name, and a part made up at the start
	Self bool      `json:"self,omitempty"` // it is the server that answers
	Seen time.Time `json:"seen,omitzero"`  // its last heartbeat

	Version   string    `json:"version,omitempty"`
	Started   time.Time `json:"started,omitzero"`
	Ready     bool      `json:"ready"` // it accepts calls
	InFlight  int       `json:"inFlight"`
	Delivered int64     `json:"delivered"` // since its start; 0 if it has no admin listener, as Rates
	Rates     Rates     `json:"rates"`
}

// Config says where the settings come from.
type Config struct {
	File   string    `json:"file,omitempty"` // "" for flags
	Loaded time.Time `json:"loaded"`
	// Error is why the newest version of the file is not in use.
	Error string `json:"error,omitempty"`
	// Restart names the keys whose newest values count only after a restart.
	Restart []string `json:"restart,omitempty"`
	History bool     `json:"history,omitempty"` // the server keeps what was delivered
}

// Send says how 'hookferry send' on the server's machine reaches it.
type Send struct {
	Endpoint string `json:"endpoint"` // URL
	// Data is the data folder with the write key that serve made up. It is empty if
	// the sources have keys of their own.
	Data string `json:"data,omitempty"`
}

// Calls counts what clients sent, since the start.
type Calls struct {
	Requests int64 `json:"requests"`
	Accepted int64 `json:"accepted"`
	Rejected int64 `json:"rejected"` // calls that are wrong
	Limited  int64 `json:"limited"`  // requests over the rate of their source
	Unknown  int64 `json:"unknown"`  // requests with a write key that is not known
	Failed   int64 `json:"failed"`   // requests told to come back: 503
}

// Totals counts deliveries, since the start.
type Totals struct {
	Accepted   int64            `json:"accepted"`
	Duplicates int64            `json:"duplicates"`
	Off        int64            `json:"off"`
	Filtered   int64            `json:"filtered"` // left out by filters of destinations
	Delivered  int64            `json:"delivered"`
	Retried    int64            `json:"retried"`
	Resent     int64            `json:"resent"`
	Dead       map[string]int64 `json:"dead"`      // by reason
	Forgotten  int64            `json:"forgotten"` // dead letters discarded for their age or number
	Discarded  int64            `json:"discarded"` // what waited and was discarded
	InFlight   int              `json:"inFlight"`
	Latency    Latency          `json:"latency"`
}

// Latency is how long requests took, in milliseconds.
type Latency struct {
	Requests int64   `json:"requests"`
	P50      float64 `json:"p50"`
	P90      float64 `json:"p90"`
	P99      float64 `json:"p99"`
}

// Rates are per second, over the last ten seconds.
type Rates struct {
	Accepted  float64 `json:"accepted"`
	Delivered float64 `json:"delivered"`
	Retried   float64 `json:"retried"`
	Dead      float64 `json:"dead"`
}

// Sources is a page of the sources, by name.
type Sources struct {
	Sources []Source `json:"sources"`
	After   string   `json:"after,omitempty"` // continues the listing; empty at its end
	Total   int      `json:"total"`           // all with q in their name
}

// A Source is an application with write keys.
type Source struct {
	Name             string    `json:"name"`
	Keys             int       `json:"keys"` // how many
	Enabled          bool      `json:"enabled"`
	Destinations     []string  `json:"destinations"`     // the first 10
	DestinationCount int       `json:"destinationCount"` // how many there are in all
	Rate             float64   `json:"rate,omitempty"`   // calls a second; 0 is no limit
	Burst            int       `json:"burst,omitempty"`
	Accepted         int64     `json:"accepted"` // calls, since the start
	Rejected         int64     `json:"rejected"`
	Limited          int64     `json:"limited"`  // requests
	Filtered         int64     `json:"filtered"` // calls that its filter left out
	Last             time.Time `json:"last,omitzero"`
}

// Destinations is a page of destinations: those with q in their id or a URL, of a
// source, in one of several states, in the order of sort.
type Destinations struct {
	Destinations []Destination `json:"destinations"`
	After        string        `json:"after,omitempty"` // continues the listing; empty at its end
	// Total counts all destinations that the parameters select. States counts, by
	// state, those that they would select with any state.
	Total  int            `json:"total"`
	States map[string]int `json:"states"`
}

// The states of a destination that is not held; the others are those of Held.
const (
	StateFailing  = "failing"  // its latest delivery was given up at the end of its retry window; also a hold
	StateRefusing = "refusing" // it refuses deliveries for good; they become dead letters
	StateRetrying = "retrying" // an attempt failed in the last ten seconds, or the latest one did
	StateWaiting  = "waiting"  // no attempt has ended since the start, and deliveries wait
	StateOK       = "ok"
	StateIdle     = "idle" // no attempt has ended since the start, and nothing waits
)

// States are all states, the worst first.
var States = []string{StateFailing, StateRefusing, "invalid", "unknown", "lookup", StateRetrying, "paused", StateWaiting, StateOK, StateIdle, "disabled"}

// What becomes of the deliveries that wait for a deleted destination.
const (
	WaitingKeep    = "keep" // for a later destination with the same id
	WaitingDiscard = "discard"
)

// WaitingChoices are both.
var WaitingChoices = []string{WaitingKeep, WaitingDiscard}

// The orders of destinations: by id, by state with the worst first, or by a number
// with the largest first.
const (
	SortID        = "id"
	SortState     = "state"
	SortWaiting   = "waiting"
	SortDead      = "dead"
	SortRetried   = "retried"
	SortDelivered = "delivered"
)

// Sorts are all orders.
var Sorts = []string{SortState, SortID, SortWaiting, SortDead, SortRetried, SortDelivered}

// A Destination is a customer's set of endpoints, with what is known of it.
type Destination struct {
	ID            string     `json:"id"`
	State         string     `json:"state"`       // one of States
	Sources       []string   `json:"sources"`     // the first 10
	SourceCount   int        `json:"sourceCount"` // how many there are in all
	Enabled       bool       `json:"enabled"`
	Paused        bool       `json:"paused"`
	Endpoints     []Endpoint `json:"endpoints"`
	Signed        bool       `json:"signed"`                  // X-Signature
	Standard      bool       `json:"standard"`                // Standard Webhooks
	MaxConcurrent int        `json:"maxConcurrent,omitempty"` // 0 is the default
	MaxRate       float64    `json:"maxRate,omitempty"`       // 0 is no limit
	// Stored is nil for a destination of the configuration file, which this API does
	// not change.
	Stored *Stored `json:"stored,omitempty"`
	// Settings are the other settings. Listings leave them out.
	Settings  *DestinationSettings `json:"settings,omitempty"`
	Held      *Held                `json:"held,omitempty"`    // why its deliveries wait although they are due
	Failure   *Failure             `json:"failure,omitempty"` // the latest failed attempt; later ones may have succeeded
	Waiting   int                  `json:"waiting"`
	Oldest    time.Time            `json:"oldest,omitzero"`
	Next      time.Time            `json:"next,omitzero"` // the next attempt, if something waits
	InFlight  int                  `json:"inFlight"`
	Since     time.Time            `json:"since,omitzero"` // when counting began
	Delivered int64                `json:"delivered"`
	Retried   int64                `json:"retried"`
	Filtered  int64                `json:"filtered"` // calls that its filter left out
	Dead      map[string]int64     `json:"dead"`     // given up since then, by reason
	// DeadLetters counts the dead letters in the store, as of some seconds ago. It is
	// nil if there are too many to count them often.
	DeadLetters *int             `json:"deadLetters,omitempty"`
	Errors      map[string]int64 `json:"errors"` // failed requests of the last hour, by reason
	Latency     Latency          `json:"latency"`
	Rates       Rates            `json:"rates"`
}

// Stored says when a destination was last changed, and by whom.
type Stored struct {
	Changed time.Time `json:"changed"`
	By      string    `json:"by"`      // ?by= of the change
	Version string    `json:"version"` // a number, for ?version=
}

// DestinationSettings have the form of the document that changes them. Settings with
// their default are left out.
type DestinationSettings struct {
	Sources         []string `json:"sources"` // the names of all
	Filter          *Filter  `json:"filter,omitempty"`
	Timeout         string   `json:"timeout,omitempty"` // such as 2s
	Window          string   `json:"window,omitempty"`
	Schedule        string   `json:"schedule,omitempty"`
	NetHTTP         bool     `json:"netHTTP,omitempty"`
	MaxConcurrent   int      `json:"maxConcurrent,omitempty"`
	MaxRate         float64  `json:"maxRate,omitempty"`
	MaxBurst        int      `json:"maxBurst,omitempty"`
	StandardSecrets int      `json:"standardSecrets"` // how many are valid
}

// A Filter selects calls by their type, "track", or by their event, "track:Order *".
type Filter struct {
	Include []string `json:"include,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
}

// NewSecret is a new secret of a destination for Standard Webhooks. No other answer
// has it.
type NewSecret struct {
	Secret string `json:"secret"`
	Valid  int    `json:"valid"` // how many secrets are valid now, with this one
}

// An Endpoint is a URL, without user, query and fragment.
type Endpoint struct {
	URL     string   `json:"url"`
	Headers []string `json:"headers,omitempty"` // the names
}

// Held is why deliveries wait although they are due.
type Held struct {
	Hold   string    `json:"hold"` // paused, disabled, unknown, invalid, lookup or failing
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
}

// A Failure is an attempt that failed.
type Failure struct {
	ID      string    `json:"id"`               // the delivery's messageId
	Source  string    `json:"source,omitempty"` // and its source
	Attempt Attempt   `json:"attempt"`
	Due     time.Time `json:"due,omitzero"` // when it is attempted again; left out if it was given up
}

// A Series is what happened over time, at one destination or at all. The slices have
// the same length. The value at i is that of the step from Start + i*Step on; Waiting
// is that at its end. A null is not known, such as before the server's start.
type Series struct {
	Destination string     `json:"destination,omitempty"`
	Start       time.Time  `json:"start"`
	Step        float64    `json:"step"` // milliseconds
	Accepted    []*float64 `json:"accepted"`
	Delivered   []*float64 `json:"delivered"`
	Retried     []*float64 `json:"retried"`
	Dead        []*float64 `json:"dead"`
	Waiting     []*float64 `json:"waiting"`
	P50         []*float64 `json:"p50"` // milliseconds
	P99         []*float64 `json:"p99"`
}

// Names say which delivery a value is about.
type Names struct {
	Destination string `json:"destination"`
	ID          string `json:"id"`               // the messageId
	Source      string `json:"source,omitempty"` // who sent the call; empty if the application itself did
	User        string `json:"user,omitempty"`   // the userId
	Event       string `json:"event,omitempty"`  // the event of a track, the name of a page or screen
	Type        string `json:"type"`             // track, identify, ...
}

// An Event is something that happened to a delivery.
type Event struct {
	Seq  uint64    `json:"seq"` // grows with each event of the process
	At   time.Time `json:"at"`
	Kind string    `json:"kind"` // accepted, attempt, delivered, dead

	Names
	Attempt *Attempt        `json:"attempt,omitempty"` // of an attempt
	Outcome string          `json:"outcome,omitempty"` // of an attempt: delivered, retryable, permanent, cut_off
	Due     time.Time       `json:"due,omitzero"`      // the next attempt
	Reason  string          `json:"reason,omitempty"`  // why the delivery is dead
	Body    json.RawMessage `json:"body,omitempty"`    // of an accepted delivery
}

// Attempt is one request to one endpoint.
type Attempt struct {
	At       time.Time `json:"at"`
	Took     float64   `json:"took"` // milliseconds
	Try      int       `json:"try"`
	Endpoint string    `json:"endpoint"`
	Status   int       `json:"status"` // 0 if there was no answer
	Reason   string    `json:"reason,omitempty"`
	Error    string    `json:"error,omitempty"`
	Answer   string    `json:"answer,omitempty"` // its first bytes
}

// The parameters. They select by equality, but q selects by a part, in any case: of the
// name, or for events of the id or the body. ?kind=, ?state= and ?source= of a deletion
// may be repeated.
const (
	ParamDestination = "destination"
	ParamType        = "type"
	ParamKind        = "kind"
	ParamQuery       = "q"
	ParamLimit       = "limit"
	ParamAfter       = "after"
	ParamReason      = "reason"
	ParamFrom        = "from"
	ParamTo          = "to"
	ParamRange       = "range"
	ParamID          = "id"
	ParamSource      = "source"
	ParamState       = "state"
	ParamBy          = "by"
	ParamVersion     = "version"
	ParamWaiting     = "waiting"
	ParamSort        = "sort"
	ParamOrder       = "order"
	ParamUser        = "user"
	ParamEvent       = "event"
)

// Events are the latest that are kept in memory, newest first.
type Events struct {
	Events []Event `json:"events"`
	// Seq is that of the latest event, selected or not. A live stream with ?after= Seq
	// misses none.
	Seq uint64 `json:"seq"`
}

// Live is one line of the live stream: an event, or how many were left out because
// the reader was too slow or more happened than a second's limit; the filter may not
// have selected those. The stream begins now, or behind the event with the seq ?after=,
// so that a reader can resume it.
type Live struct {
	Event   *Event `json:"event,omitempty"`
	Skipped int64  `json:"skipped,omitempty"`
}

// A Story is all that is known of a delivery. A dead one without a Key was replayed or
// discarded, and nothing has happened to it since.
type Story struct {
	Names
	State       string    `json:"state"` // waiting, delivered, dead
	Accepted    time.Time `json:"accepted,omitzero"`
	Ended       time.Time `json:"ended,omitzero"`
	Due         time.Time `json:"due,omitzero"`
	Tries       int       `json:"tries"`
	Reason      string    `json:"reason,omitempty"`
	Key         string    `json:"key,omitempty"` // of the dead letter
	TraceParent string    `json:"traceparent,omitempty"`
	// Attempts are the first and the latest that are known, oldest first.
	Attempts []Attempt       `json:"attempts"`
	Body     json.RawMessage `json:"body,omitempty"`
}

// A WaitingFilter selects what waits for a destination, which need not be configured:
// as parameters, and as a body. Empty fields beside Destination select all.
type WaitingFilter struct {
	Destination string `json:"destination"`
	ID          string `json:"id,omitempty"`
	User        string `json:"user,omitempty"`
	Event       string `json:"event,omitempty"`
}

// Waiting is a page of what waits, the first that is due first.
type Waiting struct {
	Waiting []WaitingDelivery `json:"waiting"`
	// After continues the listing; empty at its end. If the last delivery of this page
	// has stopped waiting, the listing begins anew.
	After string `json:"after,omitempty"`
}

// A WaitingDelivery is a delivery that waits, or is being attempted.
type WaitingDelivery struct {
	Names
	Accepted time.Time `json:"accepted"`
	Due      time.Time `json:"due"`
	Expires  time.Time `json:"expires,omitzero"` // when it is given up, once it was attempted
	Tries    int       `json:"tries"`
	Last     *Attempt  `json:"last,omitempty"`
}

// Changed counts the waiting deliveries that were changed.
type Changed struct {
	Changed int `json:"changed"`
	Claimed int `json:"claimed"` // left as they are, being attempted
}

// The orders of dead letters.
const (
	OrderOldest = "oldest"
	OrderNewest = "newest"
)

// DeadFilter selects dead letters: as parameters, and in a Selection. Empty fields
// select all. Those that died at From are selected, at To not. An empty Order means
// the oldest first.
type DeadFilter struct {
	Destination string    `json:"destination,omitempty"`
	ID          string    `json:"id,omitempty"`
	Type        string    `json:"type,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	User        string    `json:"user,omitempty"`
	From        time.Time `json:"from,omitzero"`
	To          time.Time `json:"to,omitzero"`
	Order       string    `json:"order,omitempty"`
}

// A DeliveredFilter selects deliveries that are kept: as parameters, and as a body.
// Empty fields select all. Those delivered at From are selected, at To not.
type DeliveredFilter struct {
	Destination string    `json:"destination,omitempty"`
	MessageID   string    `json:"id,omitempty"`
	User        string    `json:"user,omitempty"`
	From        time.Time `json:"from,omitzero"`
	To          time.Time `json:"to,omitzero"`
}

// Delivered is a page of deliveries that are kept, the latest first.
type Delivered struct {
	Delivered []DeliveredDelivery `json:"delivered"`
	After     string              `json:"after,omitempty"` // continues the listing; empty at its end
}

// A DeliveredDelivery is one that was delivered, and is kept.
type DeliveredDelivery struct {
	Key string `json:"key"`
	Names
	Accepted  time.Time `json:"accepted"`
	Delivered time.Time `json:"delivered"`
}

// Dead is a page of dead letters, the oldest or the newest first.
type Dead struct {
	Dead  []DeadLetter `json:"dead"`
	After string       `json:"after,omitempty"` // continues the listing; empty at its end
}

// Count is how many dead letters a filter selects.
type Count struct {
	Count int `json:"count"`
}

// A DeadLetter is a delivery that was given up. A listing leaves out its Body, and all
// Attempts but the last.
type DeadLetter struct {
	Key string `json:"key"`
	Names
	Reason      string          `json:"reason"`
	Accepted    time.Time       `json:"accepted"`
	Died        time.Time       `json:"died"`
	Tries       int             `json:"tries"`
	TraceParent string          `json:"traceparent,omitempty"`
	Attempts    []Attempt       `json:"attempts"`
	Body        json.RawMessage `json:"body,omitempty"`
}

// A Selection names dead letters: by Keys, or by Filter.
type Selection struct {
	Keys   []string    `json:"keys,omitempty"`
	Filter *DeadFilter `json:"filter,omitempty"`
}

// Progress is one line of the stream of long work, which has one a second. If the
// last line has neither Ended nor an Error, the work was cut off. Work on users counts
// those that were read: after an Error, some of the last 2,048 may not be done. The
// same request again goes on with what is left.
type Progress struct {
	Done   int    `json:"done"`
	Total  int    `json:"total,omitempty"` // 0 if it is not known
	Ended  bool   `json:"ended,omitempty"`
	Joined int    `json:"joined,omitempty"` // of a sync
	Left   int    `json:"left,omitempty"`   // of a sync
	Error  *Error `json:"error,omitempty"`  // ended the work; what was done stays done
}

// A TestRequest asks the server to send samples of calls now, past the queue. One of
// Destination, URL and Document is set.
type TestRequest struct {
	Destination string `json:"destination,omitempty"` // its endpoints, headers and secrets are used
	URL         string `json:"url,omitempty"`
	// Document has the settings of a destination that need not be set up: its keys in
	// the configuration file, with certificates as PEM.
	Document map[string]any `json:"document,omitempty"`
	Types    []string       `json:"types,omitempty"`  // none means all six
	Event    string         `json:"event,omitempty"`  // the name of tracks, pages and screens; empty means the sample's
	Source   string         `json:"source,omitempty"` // its filter counts beside that of the destination
}

// TestResult has one Exchange for each type and endpoint.
type TestResult struct {
	Exchanges []Exchange `json:"exchanges"`
}

// An Exchange is one request and its answer.
type Exchange struct {
	// Filtered says that a filter leaves such calls out; the test sent it nevertheless.
	Filtered  bool            `json:"filtered,omitempty"`
	Type      string          `json:"type"`
	Endpoint  string          `json:"endpoint"`
	Headers   []Header        `json:"headers"` // of the request; credentials are left out
	Body      json.RawMessage `json:"body"`
	Signature string          `json:"signature,omitempty"` // the X-Signature
	Status    int             `json:"status"`
	Answer    string          `json:"answer,omitempty"` // its first bytes
	Got       []Header        `json:"got,omitempty"`    // headers of the answer
	Reason    string          `json:"reason,omitempty"`
	Error     string          `json:"error,omitempty"`
	Outcome   string          `json:"outcome"`
	Timing    Timing          `json:"timing"`
}

// Header is one header.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Timing is in milliseconds from the start; 0 means not known.
type Timing struct {
	Resolved  float64 `json:"resolved,omitempty"`
	Connected float64 `json:"connected,omitempty"`
	Secured   float64 `json:"secured,omitempty"`
	FirstByte float64 `json:"firstByte,omitempty"`
	Total     float64 `json:"total"`
}

// Erasure asks the server to remove what it stores of a user, and tells no destination.
type Erasure struct {
	User string `json:"user"`
}

// Erased counts the deliveries and dead letters that were removed.
type Erased struct {
	Erased  int `json:"erased"`
	Claimed int `json:"claimed"` // left as they are, being attempted
}

// Deletion asks the server to tell destinations to delete users. Many users are sent
// as LinesType instead, with id and source as parameters.
type Deletion struct {
	// ID names the request; the same ID again is the same request. Empty makes one up.
	ID    string   `json:"id,omitempty"`
	Users []string `json:"users"`
	// Sources are those whose enabled destinations are told. None means all.
	Sources []string `json:"sources,omitempty"`
}

// Audiences is a page of the audiences, by destination and trait: those of a
// destination, and with q in their name or trait.
type Audiences struct {
	Audiences []Audience `json:"audiences"`
	After     string     `json:"after,omitempty"` // continues the listing; empty at its end
	Total     int        `json:"total"`           // all that the parameters select
}

// An Audience is a set of users that a destination is told of. Both its name, such as
// "VIP Users", and its trait, vip_users, find it.
type Audience struct {
	Destination string `json:"destination"`
	Name        string `json:"name"`
	Trait       string `json:"trait,omitempty"`      // what the destination sees
	Generation  uint64 `json:"generation,omitempty"` // how often it was synced
}
