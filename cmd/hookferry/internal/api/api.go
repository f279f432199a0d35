// Package api has the paths and the JSON of the admin API, for both of its
// ends. What each path does is said in its OpenAPI document.
//
// Times are RFC 3339 in UTC, and left out where they are not known. Durations
// are in milliseconds. Names of destinations in paths are percent-encoded.
// Secrets, write keys and values of headers that may be credentials are in no
// answer.
package api

import (
	"encoding/json"
	"time"
)

// The paths, for http.ServeMux. A listing that may be long has ?limit= and
// ?after=; see each type.
const (
	StatusPath         = "/api/v1/status"                                                  // GET: Status
	NodesPath          = "/api/v1/nodes"                                                   // GET: Nodes
	SourcesPath        = "/api/v1/sources"                                                 // GET ?q=&limit=&after=: Sources
	DestinationsPath   = "/api/v1/destinations"                                            // GET ?limit=&after= and those of DestinationFilter: Destinations
	DestinationPath    = "/api/v1/destinations/{destination}"                              // GET: Destination; PUT and PATCH ?by=&version= a document: Destination; DELETE ?waiting=keep|discard&by=&version=: Changed
	SecretsPath        = "/api/v1/destinations/{destination}/secrets"                      // POST ?by=&version=: NewSecret; DELETE ?by=&version=: Destination
	PausePath          = "/api/v1/destinations/{destination}/pause"                        // POST: Destination
	ResumePath         = "/api/v1/destinations/{destination}/resume"                       // POST: Destination
	SeriesPath         = "/api/v1/series"                                                  // GET ?destination=&range=5m|1h|24h: Series
	EventsPath         = "/api/v1/events"                                                  // GET ?limit= and those of EventFilter: Events
	LivePath           = "/api/v1/events/live"                                             // GET ?after= a seq, and those of EventFilter: a stream of Live
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
	AudiencesPath      = "/api/v1/audiences"                                               // GET ?limit=&after= and those of AudienceFilter: Audiences; POST Audience: Audience
	MembersPath        = "/api/v1/destinations/{destination}/audiences/{audience}/members" // GET: lines; PUT lines: a stream of Progress
	AccessPath         = "/api/v1/access"                                                  // GET, without a token: Access
	OpenAPIPath        = "/api/v1/openapi.json"
)

// A stream is application/x-ndjson: one JSON value a line, flushed as they
// come. Lines that are empty keep the connection alive: there is a line every
// KeepAlive at least.
const (
	StreamType = "application/x-ndjson"
	KeepAlive  = 15 * time.Second
)

// LinesType is the type of the members of an audience and of long lists of
// users: one user id a line, in UTF-8.
const LinesType = "text/plain"

// Error is the body of every answer that is not 2xx, and may end a stream.
type Error struct {
	// Code is stable, one of those below.
	Code string `json:"code"`
	// Message says what is wrong, and names the field.
	Message string `json:"message"`
	// Field is the field that is wrong, if it is one.
	Field string `json:"field,omitempty"`
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

// Access says whether the rest of the API answers a request with the headers of this
// one: it has the token, or none is needed.
type Access struct {
	Granted bool `json:"granted"`
}

// Status says how the server is.
type Status struct {
	Version string    `json:"version"`
	Node    string    `json:"node"` // its name among the servers of its store
	Started time.Time `json:"started"`
	Now     time.Time `json:"now"`
	// Ready is what /readyz says: calls are accepted.
	Ready  bool   `json:"ready"`
	Config Config `json:"config"`
	Send   Send   `json:"send"`
	Calls  Calls  `json:"calls"`
	Totals Totals `json:"totals"`
	// Waiting counts deliveries in the store, Claimed those of them that a server has
	// taken to attempt, Dead the dead letters.
	Waiting int        `json:"waiting"`
	Claimed int        `json:"claimed"`
	Dead    int        `json:"dead"`
	Oldest  *time.Time `json:"oldest,omitempty"` // the earliest that is due and not claimed
	// Errors counts the failed requests of the last hour, by reason.
	Errors map[string]int64 `json:"errors"`
	// Rates are of the last ten seconds, per second.
	Rates Rates `json:"rates"`
	// Memory is the Go heap in bytes.
	Memory int64 `json:"memory"`
}

// Nodes lists the servers of a store, in the order they were started.
type Nodes struct {
	// Shared is whether there may be more than the one that answers.
	Shared bool   `json:"shared"`
	Nodes  []Node `json:"nodes"`
}

// A Node is a server. What it says of itself is as old as Seen, and left out if it
// did not say, as one of another version may.
type Node struct {
	Name string `json:"name"` // the host's name, and a part made up at the start
	// Self: it is the one that answers.
	Self bool `json:"self,omitempty"`
	// Seen is when it last gave a sign of life to the store.
	Seen *time.Time `json:"seen,omitempty"`

	Version  string     `json:"version,omitempty"`
	Started  *time.Time `json:"started,omitempty"`
	Ready    bool       `json:"ready"` // it accepts calls
	InFlight int        `json:"inFlight"`
	// Delivered counts deliveries since its start, and Rates are of ten
	// seconds, per second; zero where it has no admin listener.
	Delivered int64 `json:"delivered"`
	Rates     Rates `json:"rates"`
}

// Config says where the settings come from.
type Config struct {
	File   string    `json:"file,omitempty"` // "" for flags
	Loaded time.Time `json:"loaded"`
	// Error is why the newest version of the file is not in use, "" if it is.
	Error string `json:"error,omitempty"`
	// Restart names the keys whose newest values count after a restart only.
	Restart []string `json:"restart,omitempty"`
	// History reports whether what was delivered is kept.
	History bool `json:"history,omitempty"`
}

// Send says how 'hookferry send' on the server's machine reaches it.
type Send struct {
	Endpoint string `json:"endpoint"` // URL
	// Data is the data folder where send finds the write key that serve made up, ""
	// if the sources have keys of their own.
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

// Rates are per second.
type Rates struct {
	Accepted  float64 `json:"accepted"`
	Delivered float64 `json:"delivered"`
	Retried   float64 `json:"retried"`
	Dead      float64 `json:"dead"`
}

// Sources is a page of the sources, by name.
type Sources struct {
	Sources []Source `json:"sources"`
	// After continues the listing, "" at its end.
	After string `json:"after,omitempty"`
	// Total counts all with the query in their name.
	Total int `json:"total"`
}

// A Source is an application with write keys.
type Source struct {
	Name         string   `json:"name"`
	Keys         int      `json:"keys"` // how many
	Enabled      bool     `json:"enabled"`
	Destinations []string `json:"destinations"` // the first 10
	// DestinationCount is how many there are in all.
	DestinationCount int        `json:"destinationCount"`
	Rate             float64    `json:"rate,omitempty"` // calls a second; 0 is no limit
	Burst            int        `json:"burst,omitempty"`
	Accepted         int64      `json:"accepted"` // calls, since the start
	Rejected         int64      `json:"rejected"`
	Limited          int64      `json:"limited"`  // requests
	Filtered         int64      `json:"filtered"` // calls that its filter left out
	Last             *time.Time `json:"last,omitempty"`
}

// DestinationFilter selects destinations, and puts them in order: as parameters.
// Empty fields select all, by id.
type DestinationFilter struct {
	Query  string   // a part of the id or of a URL, in any case
	Source string   // equal to the name of one
	States []string // one of these
	Sort   string   // one of Sorts
}

// Destinations is a page of destinations.
type Destinations struct {
	Destinations []Destination `json:"destinations"`
	// After continues the listing, "" at its end.
	After string `json:"after,omitempty"`
	// Total counts all that the filter selects, and States those that it would
	// whatever their state is, by state.
	Total  int            `json:"total"`
	States map[string]int `json:"states"`
}

// The states of a destination that is not held; others are those of Held.
const (
	StateFailing  = "failing"  // or its latest delivery was given up after a whole window of failures
	StateRefusing = "refusing" // it refuses deliveries for good, which makes dead letters of them
	StateRetrying = "retrying" // attempts have failed within ten seconds, or the latest has
	StateWaiting  = "waiting"  // no attempt has ended since the start, and deliveries wait
	StateOK       = "ok"
	StateIdle     = "idle" // no attempt has ended since the start, and nothing waits
)

// States are all of them, the worst first.
var States = []string{StateFailing, StateRefusing, "invalid", "unknown", "lookup", StateRetrying, "paused", StateWaiting, StateOK, StateIdle, "disabled"}

// What becomes of what waits for a destination that is deleted: it is kept, for a destination
// with the same id that is made later, or discarded.
const (
	WaitingKeep    = "keep"
	WaitingDiscard = "discard"
)

// WaitingChoices are all of them.
var WaitingChoices = []string{WaitingKeep, WaitingDiscard}

// The orders of destinations: by id, by state with the worst first, and by
// number with the largest first.
const (
	SortID        = "id"
	SortState     = "state"
	SortWaiting   = "waiting"
	SortDead      = "dead"
	SortRetried   = "retried"
	SortDelivered = "delivered"
)

// Sorts are all of them.
var Sorts = []string{SortState, SortID, SortWaiting, SortDead, SortRetried, SortDelivered}

// A Destination is a customer's set of endpoints, with what is known of it.
type Destination struct {
	ID      string   `json:"id"`
	State   string   `json:"state"`   // one of States
	Sources []string `json:"sources"` // the first 10
	// SourceCount is how many there are in all.
	SourceCount int        `json:"sourceCount"`
	Enabled     bool       `json:"enabled"`
	Paused      bool       `json:"paused"`
	Endpoints   []Endpoint `json:"endpoints"`
	Signed      bool       `json:"signed"`   // X-Signature
	Standard    bool       `json:"standard"` // Standard Webhooks
	// MaxConcurrent and MaxRate are its limits; 0 is the default, and none.
	MaxConcurrent int     `json:"maxConcurrent,omitempty"`
	MaxRate       float64 `json:"maxRate,omitempty"`
	// Stored is of a destination that this API made, and changes; the others are in the
	// configuration file.
	Stored *Stored `json:"stored,omitempty"`
	// Settings are the other settings of one that is asked for by its id.
	Settings *DestinationSettings `json:"settings,omitempty"`
	// Held says why its deliveries wait although they are due.
	Held *Held `json:"held,omitempty"`
	// Failure is the latest attempt that failed; it may have taken others since.
	Failure *Failure   `json:"failure,omitempty"`
	Waiting int        `json:"waiting"`
	Oldest  *time.Time `json:"oldest,omitempty"`
	// Next is when the next attempt is to be, if something waits.
	Next      *time.Time       `json:"next,omitempty"`
	InFlight  int              `json:"inFlight"`
	Since     *time.Time       `json:"since,omitempty"` // when counting began
	Delivered int64            `json:"delivered"`
	Retried   int64            `json:"retried"`
	Filtered  int64            `json:"filtered"` // calls that its filter left out
	Dead      map[string]int64 `json:"dead"`     // given up since then, by reason
	// DeadLetters counts those in the store, some seconds ago. It is left out where there
	// are too many to count them often.
	DeadLetters *int             `json:"deadLetters,omitempty"`
	Errors      map[string]int64 `json:"errors"` // failed requests of the last hour, by reason
	Latency     Latency          `json:"latency"`
	Rates       Rates            `json:"rates"`
}

// Stored says who changed a destination last, as they said, and when.
type Stored struct {
	Changed time.Time `json:"changed"`
	By      string    `json:"by"`
	// Version is what ?version= compares, a number.
	Version string `json:"version"`
}

// DestinationSettings are in the form of the document that changes them. What is left out is
// the default.
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

// A Filter selects calls: by their type, as "track", or by their event, as "track:Order *".
type Filter struct {
	Include []string `json:"include,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
}

// NewSecret is a secret for Standard Webhooks that was made for a destination. No other answer
// has it.
type NewSecret struct {
	Secret string `json:"secret"`
	// Valid is how many of the destination are valid now, this one included.
	Valid int `json:"valid"`
}

// An Endpoint is a URL, without user, query and fragment.
type Endpoint struct {
	URL     string   `json:"url"`
	Headers []string `json:"headers,omitempty"` // the names
}

// Held is why deliveries wait: paused, disabled, unknown, invalid, lookup,
// failing.
type Held struct {
	Hold   string     `json:"hold"`
	Since  *time.Time `json:"since,omitempty"`
	Until  *time.Time `json:"until,omitempty"`
	Reason string     `json:"reason,omitempty"`
}

// A Failure is an attempt that failed.
type Failure struct {
	ID      string     `json:"id"`               // the delivery's messageId
	Source  string     `json:"source,omitempty"` // and its source
	Attempt Attempt    `json:"attempt"`
	Due     *time.Time `json:"due,omitempty"` // when it is attempted again; left out if it was given up
}

// A Series is what happened over time, of one destination or, without one, of
// all. The slices have the same length, oldest first; the value at i is of the
// Step that begins at Start + i*Step. Waiting is what waited at its end.
// A null is a time that is not known, such as before the start.
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

// An Event is something that happened to a delivery.
type Event struct {
	// Seq grows with each event of the process.
	Seq  uint64    `json:"seq"`
	At   time.Time `json:"at"`
	Kind string    `json:"kind"` // accepted, attempt, delivered, dead

	Destination string `json:"destination"`
	// ID is the messageId, and Source the name of who sent the call, "" if that is the
	// application itself. User is its userId, and Event the event of a track, or the name
	// of a page or screen.
	ID     string `json:"id"`
	Source string `json:"source,omitempty"`
	User   string `json:"user,omitempty"`
	Event  string `json:"event,omitempty"`
	Type   string `json:"type"` // track, identify, ...
	// Attempt is the request, for an attempt.
	Attempt *Attempt `json:"attempt,omitempty"`
	// Outcome is what it led to: delivered, retryable, permanent, cut_off.
	Outcome string `json:"outcome,omitempty"`
	// Due is when there will be another attempt.
	Due *time.Time `json:"due,omitempty"`
	// Reason is why it is dead.
	Reason string `json:"reason,omitempty"`
	// Body is the webhook's body, for accepted.
	Body json.RawMessage `json:"body,omitempty"`
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

// The EventFilter's parameters: destination, type, kind (repeated for several) select by equality, q
// by a part of the id or the body, in any case.
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
	// Seq is that of the latest event of all, whatever the filter: a live
	// stream with ?after= it misses none.
	Seq uint64 `json:"seq"`
}

// Live is one line of the live stream: an event, or how many were left out
// because the reader or the bound of a second could not take them; whether the
// filter would have selected these is not known. The stream begins with now, or
// behind the event with the seq ?after=, so that it can be taken up again.
type Live struct {
	Event   *Event `json:"event,omitempty"`
	Skipped int64  `json:"skipped,omitempty"`
}

// A Story is all that is known of a delivery. One that is dead and has no Key
// was replayed or discarded since, and nothing has happened to it after that.
type Story struct {
	Destination string     `json:"destination"`
	ID          string     `json:"id"` // these as of an Event
	Source      string     `json:"source,omitempty"`
	User        string     `json:"user,omitempty"`
	Event       string     `json:"event,omitempty"`
	Type        string     `json:"type"`
	State       string     `json:"state"` // waiting, delivered, dead
	Accepted    *time.Time `json:"accepted,omitempty"`
	Ended       *time.Time `json:"ended,omitempty"`
	Due         *time.Time `json:"due,omitempty"`
	Tries       int        `json:"tries"`
	Reason      string     `json:"reason,omitempty"`
	Key         string     `json:"key,omitempty"` // of the dead letter
	TraceParent string     `json:"traceparent,omitempty"`
	// Attempts are the first and the latest that are known, oldest first.
	Attempts []Attempt       `json:"attempts"`
	Body     json.RawMessage `json:"body,omitempty"`
}

// A WaitingFilter selects what waits for a destination, which may be unknown: as parameters, and
// as a body. Empty fields but Destination select all.
type WaitingFilter struct {
	Destination string `json:"destination"`
	ID          string `json:"id,omitempty"`
	User        string `json:"user,omitempty"`
	Event       string `json:"event,omitempty"`
}

// Waiting is a page of what waits, the first that is due first.
type Waiting struct {
	Waiting []WaitingDelivery `json:"waiting"`
	// After continues the listing, "" at its end. The listing begins anew if what it ended with
	// does not wait any more.
	After string `json:"after,omitempty"`
}

// A WaitingDelivery is a delivery that waits, or is being attempted.
type WaitingDelivery struct {
	ID       string     `json:"id"` // these as of an Event
	Source   string     `json:"source,omitempty"`
	User     string     `json:"user,omitempty"`
	Event    string     `json:"event,omitempty"`
	Type     string     `json:"type"`
	Accepted time.Time  `json:"accepted"`
	Due      time.Time  `json:"due"`
	Expires  *time.Time `json:"expires,omitempty"` // when it is given up, once it was attempted
	Tries    int        `json:"tries"`
	Last     *Attempt   `json:"last,omitempty"`
}

// Changed is how many of what waits were changed, and how many were left because they are
// being attempted.
type Changed struct {
	Changed int `json:"changed"`
	Claimed int `json:"claimed"`
}

// The orders of dead letters.
const (
	OrderOldest = "oldest"
	OrderNewest = "newest"
)

// DeadFilter selects dead letters: as parameters, and in a Selection. Empty
// fields select all. From is not before, To is before. Order is one of those above, the
// oldest first if it is empty.
type DeadFilter struct {
	Destination string     `json:"destination,omitempty"`
	ID          string     `json:"id,omitempty"`
	Type        string     `json:"type,omitempty"`
	Reason      string     `json:"reason,omitempty"`
	User        string     `json:"user,omitempty"`
	From        *time.Time `json:"from,omitempty"`
	To          *time.Time `json:"to,omitempty"`
	Order       string     `json:"order,omitempty"`
}

// A DeliveredFilter selects of what was delivered and is kept: as parameters, and as a body. Empty
// fields select all. From is not before, To is before.
type DeliveredFilter struct {
	Destination string     `json:"destination,omitempty"`
	ID          string     `json:"id,omitempty"`
	User        string     `json:"user,omitempty"`
	From        *time.Time `json:"from,omitempty"`
	To          *time.Time `json:"to,omitempty"`
}

// Delivered is a page of what was delivered and is kept, the latest first.
type Delivered struct {
	Delivered []DeliveredDelivery `json:"delivered"`
	// After continues the listing, "" at its end.
	After string `json:"after,omitempty"`
}

// A DeliveredDelivery was delivered, and is kept.
type DeliveredDelivery struct {
	Key         string    `json:"key"`
	Destination string    `json:"destination"`
	ID          string    `json:"id"` // these as of an Event
	Source      string    `json:"source,omitempty"`
	User        string    `json:"user,omitempty"`
	Event       string    `json:"event,omitempty"`
	Type        string    `json:"type"`
	Accepted    time.Time `json:"accepted"`
	Delivered   time.Time `json:"delivered"`
}

// Dead is a page of dead letters, in the order they died or the opposite one.
type Dead struct {
	Dead []DeadLetter `json:"dead"`
	// After continues the listing, "" at its end.
	After string `json:"after,omitempty"`
}

// Count is how many there are.
type Count struct {
	Count int `json:"count"`
}

// A DeadLetter is a delivery that was given up. A listing has it without Body
// and with the last of its Attempts only.
type DeadLetter struct {
	Key         string          `json:"key"`
	Destination string          `json:"destination"`
	ID          string          `json:"id"` // these as of an Event
	Source      string          `json:"source,omitempty"`
	User        string          `json:"user,omitempty"`
	Event       string          `json:"event,omitempty"`
	Type        string          `json:"type"`
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

// Progress is one line of long work, of which there is one a second. The last
// has Ended; without it the work was cut off. Done counts what was done, Total
// what there is to do, 0 if that is not known. Of users it counts those that
// were read: if an Error ends the work, of the last 2,048 of them some may not
// be done. To ask again for all of them goes on.
type Progress struct {
	Done  int  `json:"done"`
	Total int  `json:"total,omitempty"`
	Ended bool `json:"ended,omitempty"`
	// Joined and Left are of a sync.
	Joined int `json:"joined,omitempty"`
	Left   int `json:"left,omitempty"`
	// Error ends the work; what was done stays done.
	Error *Error `json:"error,omitempty"`
}

// A TestRequest asks for a sample of calls to be sent now, past the queue.
type TestRequest struct {
	// Destination is whose endpoints, headers and secrets are used; or URL
	// alone; or Document, the settings of a destination that is not set up yet: the
	// keys of one in the configuration file, with certificates as PEM. One of them is
	// set.
	Destination string         `json:"destination,omitempty"`
	URL         string         `json:"url,omitempty"`
	Document    map[string]any `json:"document,omitempty"`
	// Types are those of the calls; none means all six.
	Types []string `json:"types,omitempty"`
	// Event is the name of tracks, pages and screens. Empty means that of the sample.
	Event string `json:"event,omitempty"`
	// Source is the source whose filter counts beside that of the destination.
	Source string `json:"source,omitempty"`
}

// TestResult has one Exchange for each type and endpoint.
type TestResult struct {
	Exchanges []Exchange `json:"exchanges"`
}

// An Exchange is one request and its answer.
type Exchange struct {
	// Filtered says that a filter of the destination or the source leaves such a call out.
	// It was sent nevertheless.
	Filtered bool            `json:"filtered,omitempty"`
	Type     string          `json:"type"`
	Endpoint string          `json:"endpoint"`
	Headers  []Header        `json:"headers"` // of the request; credentials are left out
	Body     json.RawMessage `json:"body"`
	// Signature is the X-Signature sent, "" if none.
	Signature string   `json:"signature,omitempty"`
	Status    int      `json:"status"`
	Answer    string   `json:"answer,omitempty"` // its first bytes
	Got       []Header `json:"got,omitempty"`    // headers of the answer
	Reason    string   `json:"reason,omitempty"`
	Error     string   `json:"error,omitempty"`
	Outcome   string   `json:"outcome"`
	Timing    Timing   `json:"timing"`
}

// Header is one header.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Timing is in milliseconds from the start; 0 is not known.
type Timing struct {
	Resolved  float64 `json:"resolved,omitempty"`
	Connected float64 `json:"connected,omitempty"`
	Secured   float64 `json:"secured,omitempty"`
	FirstByte float64 `json:"firstByte,omitempty"`
	Total     float64 `json:"total"`
}

// Erasure asks for what is stored of a user to be removed. Destinations are not told.
type Erasure struct {
	User string `json:"user"`
}

// Erased says how many deliveries, dead letters and kept deliveries were removed. Claimed
// counts those that were left because they are being attempted.
type Erased struct {
	Erased  int `json:"erased"`
	Claimed int `json:"claimed"`
}

// Deletion asks for users to be deleted. Many users are sent as LinesType
// instead, with id and source (repeated for several) as parameters.
type Deletion struct {
	// ID names the request; repeated under the same id it is the same request.
	// "" makes one up.
	ID    string   `json:"id,omitempty"`
	Users []string `json:"users"`
	// Sources are those affected: each of their destinations that is enabled is
	// told. None means all.
	Sources []string `json:"sources,omitempty"`
}

// AudienceFilter selects audiences: as parameters. Empty fields select all.
type AudienceFilter struct {
	Destination string // equal to its id
	Query       string // a part of the name or the trait, in any case
}

// Audiences is a page of the audiences, by destination and trait.
type Audiences struct {
	Audiences []Audience `json:"audiences"`
	// After continues the listing, "" at its end.
	After string `json:"after,omitempty"`
	// Total counts all that the filter selects.
	Total int `json:"total"`
}

// An Audience is a set of users that a destination is told of. Its name is the
// one that it was made with, such as "VIP Users"; that of its trait, vip_users,
// finds it as well.
type Audience struct {
	Destination string `json:"destination"`
	Name        string `json:"name"`
	Trait       string `json:"trait,omitempty"`      // what the destination sees
	Generation  uint64 `json:"generation,omitempty"` // how often it was synced
}
