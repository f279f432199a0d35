// Package api has the paths and JSON types of the admin API, which openapi.json explains, and a
// client.
//
// Times are RFC 3339 in UTC, or left out. Durations are in milliseconds. Names in paths are
// percent-encoded. No answer has secrets, write keys, or values of headers that may be credentials.
package api

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// The paths, for http.ServeMux, with their methods, parameters or bodies, and answers. Long
// listings come in pages, by ?limit= and ?after=.
const (
	StatusPath       = "/api/v1/status"                                                  // GET: Status
	NodesPath        = "/api/v1/nodes"                                                   // GET: Nodes
	SourcesPath      = "/api/v1/sources"                                                 // GET ?q=&limit=&after=: Page[Source]
	DestinationsPath = "/api/v1/destinations"                                            // GET ?q=&source=&state=&sort=&limit=&after=: Destinations
	DestinationPath  = "/api/v1/destinations/{destination}"                              // GET: Destination; PUT and PATCH ?by=&version= a document: Destination; DELETE ?waiting=keep|discard&by=&version=: Changed
	SecretsPath      = "/api/v1/destinations/{destination}/secrets"                      // POST ?by=&version=: NewSecret; DELETE ?by=&version=: Destination
	PausePath        = "/api/v1/destinations/{destination}/pause"                        // POST: Destination
	ResumePath       = "/api/v1/destinations/{destination}/resume"                       // POST: Destination
	SeriesPath       = "/api/v1/series"                                                  // GET ?destination=&range=5m|1h|24h: Series
	EventsPath       = "/api/v1/events"                                                  // GET ?destination=&type=&kind=&q=&limit=: Events
	LivePath         = "/api/v1/events/live"                                             // GET ?destination=&type=&kind=&q=&after= the Seq of an event: a stream of Live
	StoryPath        = "/api/v1/story"                                                   // GET ?destination=&id=[&source=]: Delivery
	DeliveriesPath   = "/api/v1/deliveries"                                              // GET ?order=&limit=&after= and the fields of a webhook.Query: Page[Delivery]
	CountPath        = "/api/v1/deliveries/count"                                        // GET, the fields of a webhook.Query: Count
	DeliveryPath     = "/api/v1/deliveries/{key}"                                        // GET: Delivery
	RetryPath        = "/api/v1/deliveries/retry"                                        // POST Selection: a stream of Progress
	DiscardPath      = "/api/v1/deliveries/discard"                                      // POST Selection: a stream of Progress
	TestPath         = "/api/v1/test"                                                    // POST TestRequest: TestResult
	DeletionsPath    = "/api/v1/deletions"                                               // POST Deletion: a stream of Progress
	ErasuresPath     = "/api/v1/erasures"                                                // POST Erasure: Erased
	AudiencesPath    = "/api/v1/audiences"                                               // GET ?destination=&q=&limit=&after=: Page[Audience]; POST Audience: Audience
	MembersPath      = "/api/v1/destinations/{destination}/audiences/{audience}/members" // GET: lines; PUT ?allowShrink=true lines: a stream of Progress
	PublishPath      = "/v1/tenants/{tenant}/events"                                     // on the listener for calls; POST a TenantEvent or a list of them: Published
	TenantsPath      = "/api/v1/tenants"                                                 // GET ?limit=&after=: Page[tenants.Tenant]; POST ?by= TenantSettings: tenants.Tenant
	TenantPath       = "/api/v1/tenants/{tenant}"                                        // GET: tenants.Tenant; PATCH ?by=&version= TenantSettings: tenants.Tenant; DELETE ?by=&waiting=: Changed
	TokensPath       = "/api/v1/tenants/{tenant}/tokens"                                 // GET ?limit=&after=: Page[tenants.Token]; POST ?by= TokenSettings: NewToken
	TokenPath        = "/api/v1/tenants/{tenant}/tokens/{token}"                         // DELETE ?by=: tenants.Token
	PortalPath       = "/api/v1/tenants/{tenant}/portal"                                 // POST ?by=&for=&lasts=: PortalLink; DELETE ?by=: tenants.Tenant
	// The paths below take a token of the tenant, too. The {name} of a destination is what follows the
	// slash in its id.
	TenantDestinationsPath = "/api/v1/tenants/{tenant}/destinations"               // GET ?limit=&after=: Page[TenantDestination]; POST ?by= TenantDestinationSettings: NewTenantDestination
	TenantDestinationPath  = "/api/v1/tenants/{tenant}/destinations/{name}"        // GET: TenantDestination; PATCH ?by=&version= TenantDestinationSettings: TenantDestination; DELETE ?by=&version=&waiting=: Changed
	TenantRotatePath       = "/api/v1/tenants/{tenant}/destinations/{name}/rotate" // POST ?by=&overlap=: NewTenantDestination
	TenantDeliveriesPath   = "/api/v1/tenants/{tenant}/deliveries"                 // GET, as DeliveriesPath: Page[Delivery]
	TenantDeliveryPath     = "/api/v1/tenants/{tenant}/deliveries/{key}"           // GET: Delivery
	TenantCountPath        = "/api/v1/tenants/{tenant}/deliveries/count"           // GET, as CountPath: Count
	TenantRetryPath        = "/api/v1/tenants/{tenant}/deliveries/retry"           // POST Selection of keys: a stream of Progress
	TenantDiscardPath      = "/api/v1/tenants/{tenant}/deliveries/discard"         // POST Selection of keys: a stream of Progress
	AccessPath             = "/api/v1/access"                                      // GET, without a token: Access
	OpenAPIPath            = "/api/v1/openapi.json"
)

// A stream is one JSON value a line, each flushed at once. Empty lines keep the
// connection alive: a line comes at least every KeepAlive.
const (
	StreamType = "application/x-ndjson"
	KeepAlive  = 15 * time.Second
)

// LinesType is the type of lists of users: one id a line, in UTF-8.
const LinesType = "text/plain"

// Error is the body of every answer without a 2xx status. A stream may end with it, too.
type Error struct {
	Code    string `json:"code"`            // one of the codes below, which never change
	Message string `json:"message"`         // what is wrong, with the name of the field
	Field   string `json:"field,omitempty"` // the wrong field; empty if the error is not about one field
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

// Access says whether a client has access to the API.
type Access struct {
	Granted bool `json:"granted"` // the request carried the token, or the API needs none
}

// Status is the state of the server.
type Status struct {
	Version string           `json:"version"`
	Node    string           `json:"node"` // the server's name among the servers of the store
	Started time.Time        `json:"started"`
	Now     time.Time        `json:"now"`
	Ready   bool             `json:"ready"` // the server accepts calls, as /readyz says
	Config  Config           `json:"config"`
	Send    Send             `json:"send"`
	Calls   Calls            `json:"calls"`
	Totals  Totals           `json:"totals"`
	Waiting int              `json:"waiting"`         // deliveries in the store, including the claimed ones
	Claimed int              `json:"claimed"`         // waiting deliveries that a server has claimed to attempt them
	Dead    int              `json:"dead"`            // dead letters
	Oldest  time.Time        `json:"oldest,omitzero"` // when the first unclaimed delivery was due
	Errors  map[string]int64 `json:"errors"`          // failed requests of the last hour, by reason
	Rates   Rates            `json:"rates"`
	Memory  int64            `json:"memory"` // the Go heap, in bytes

	Troubles []Trouble `json:"troubles,omitempty"` // what is wrong with the store
	Unrouted []string  `json:"unrouted,omitempty"` // the first 10 sources without a destination, whose calls go nowhere
}

// Kinds of Trouble.
const (
	TroubleRefused     = "refused"     // the store refused a call in the last five minutes
	TroubleUnusable    = "unusable"    // the store cannot be used now
	TroubleMaintenance = "maintenance" // a maintenance step of the store keeps failing
)

// A Trouble is something wrong with the store.
type Trouble struct {
	Kind  string    `json:"kind"`
	Step  string    `json:"step,omitempty"`  // of TroubleMaintenance
	At    time.Time `json:"at,omitzero"`     // when a call was refused last, or since when the step fails
	Error string    `json:"error,omitempty"` // left out of TroubleMaintenance; the log has it
}

// Nodes lists the servers that share a store, in the order of their starts.
type Nodes struct {
	Shared bool   `json:"shared"` // several servers may share the store
	Nodes  []Node `json:"nodes"`
}

// A Node is a server that shares the store. Its heartbeat carries the fields from Version on, of
// which a server of another version may leave out some.
type Node struct {
	Name string    `json:"name"`           // the host's name and a random part
	Self bool      `json:"self,omitempty"` // it is the server that answers the request
	Seen time.Time `json:"seen,omitzero"`  // its last heartbeat

	Version   string    `json:"version,omitempty"`
	Started   time.Time `json:"started,omitzero"`
	Ready     bool      `json:"ready"` // it accepts calls
	InFlight  int       `json:"inFlight"`
	Delivered int64     `json:"delivered"` // since the start of the server
	Rates     Rates     `json:"rates"`     // 0 if the server has no admin listener
}

// Config says where the settings come from.
type Config struct {
	File    string    `json:"file,omitempty"` // "" for flags
	Loaded  time.Time `json:"loaded"`
	Error   string    `json:"error,omitempty"`   // why the newest version of the file is not in use
	Restart []string  `json:"restart,omitempty"` // keys whose newest values take effect only after a restart
	History bool      `json:"history,omitempty"` // the server keeps delivered deliveries
}

// Send says how 'hookferry send' reaches the server from the same machine.
type Send struct {
	Endpoint string `json:"endpoint"` // URL
	// Data is the data folder with the write key that serve has made, "" if the sources have keys.
	Data string `json:"data,omitempty"`
}

// Calls counts what clients sent, since the start.
type Calls struct {
	Requests int64 `json:"requests"`
	Accepted int64 `json:"accepted"`
	Rejected int64 `json:"rejected"` // invalid calls
	Limited  int64 `json:"limited"`  // requests that exceeded the rate of their source
	Unknown  int64 `json:"unknown"`  // requests with an unknown write key
	Failed   int64 `json:"failed"`   // requests answered by 503, which clients repeat
}

// Totals counts deliveries, since the start.
type Totals struct {
	Accepted   int64            `json:"accepted"`
	Duplicates int64            `json:"duplicates"`
	Off        int64            `json:"off"`
	Filtered   int64            `json:"filtered"` // left out by the filters of destinations
	Delivered  int64            `json:"delivered"`
	Unkept     int64            `json:"unkept"` // delivered ones that the history could not keep
	Retried    int64            `json:"retried"`
	Resent     int64            `json:"resent"`
	Dead       map[string]int64 `json:"dead"`      // by reason
	Forgotten  int64            `json:"forgotten"` // dead letters discarded because of their age or size
	Discarded  int64            `json:"discarded"` // waiting deliveries that were discarded
	InFlight   int              `json:"inFlight"`
	Latency    webhook.Latency  `json:"latency"`
}

// Rates has numbers per second, over the last ten seconds.
type Rates struct {
	Accepted  float64 `json:"accepted"`
	Delivered float64 `json:"delivered"`
	Retried   float64 `json:"retried"`
	Dead      float64 `json:"dead"`
}

// A Page is a part of a listing. Sources are listed by name, audiences by destination and trait,
// and deliveries in the order of acceptance, the newest first unless the parameter "order" says
// oldest. A page of deliveries may be short, or empty, although more follow, because the server
// reads at most 10,000 deliveries for a page.
type Page[T any] struct {
	Items []T    `json:"items"`
	After string `json:"after,omitempty"` // the parameter that continues the listing; empty at its end
	// Total is how many items the parameters select. It is 0 for deliveries, which are not counted.
	Total int `json:"total,omitempty"`
}

// A Source is an application with write keys.
type Source struct {
	Name             string    `json:"name"`
	Keys             int       `json:"keys"` // the number of its write keys
	Enabled          bool      `json:"enabled"`
	Destinations     []string  `json:"destinations"`     // the first 10
	DestinationCount int       `json:"destinationCount"` // how many destinations it has in all
	Rate             float64   `json:"rate,omitempty"`   // calls a second; 0 is no limit
	Burst            int       `json:"burst,omitempty"`
	Accepted         int64     `json:"accepted"` // calls, since the start
	Rejected         int64     `json:"rejected"`
	Limited          int64     `json:"limited"`  // requests that exceeded the rate
	Filtered         int64     `json:"filtered"` // calls that the source's filter left out
	BadTimes         int64     `json:"badTimes"` // accepted calls with a time that could not be read
	Last             time.Time `json:"last,omitzero"`
}

// Destinations is a page of destinations, in the order of the parameter sort. The parameters "q",
// "source" and "state" select them by a part of the id or of a URL, by a source, and by states. The
// list has a destination of a tenant only while it is in trouble: it fails, or it is held, but not
// by its tenant.
type Destinations struct {
	Page[Destination]
	// States counts the destinations in each state, whatever the parameter "state" selects.
	States map[string]int `json:"states"`
}

// The states of a destination that is not held. The state of a held destination is its Held.Kind.
const (
	StateFailing  = "failing"  // its latest delivery was given up at the end of its retry window; a hold has this name, too
	StateRefusing = "refusing" // it refuses deliveries permanently; they become dead letters
	StateRetrying = "retrying" // an attempt failed in the last ten seconds, or the latest attempt failed
	StateWaiting  = "waiting"  // no attempt has ended since the start, and deliveries wait
	StateOK       = "ok"
	StateIdle     = "idle" // no attempt has ended since the start, and no delivery waits
)

// States are all states, the worst first.
var States = []string{StateFailing, StateRefusing, "invalid", "unknown", "lookup", StateRetrying, "paused", StateWaiting, StateOK, StateIdle, "disabled"}

// WaitingChoices are what may become of the waiting deliveries of a deleted destination: they are
// kept, or discarded. Kept deliveries wait for a later destination with the same id. Those of a
// tenant's destination become dead letters instead.
var WaitingChoices = []string{WaitingKeep, WaitingDiscard}

const (
	WaitingKeep    = "keep"
	WaitingDiscard = "discard"
)

// Sorts has the orders of destinations: the worst state, the id, or the largest number first.
var Sorts = []string{"state", "id", "waiting", "dead", "retried", "delivered"}

// A Destination is a customer's set of endpoints, with its state and its counts.
type Destination struct {
	ID            string          `json:"id"`
	Tenant        string          `json:"tenant,omitempty"` // the one that it belongs to; TenantDestinationPath changes it
	State         string          `json:"state"`            // one of States
	Sources       []string        `json:"sources"`          // the first 10
	SourceCount   int             `json:"sourceCount"`      // how many sources it has in all
	Enabled       bool            `json:"enabled"`
	Paused        bool            `json:"paused"`
	Endpoints     []ShownEndpoint `json:"endpoints"`
	Signed        bool            `json:"signed"`                  // X-Signature
	Standard      bool            `json:"standard"`                // Standard Webhooks
	MaxConcurrent int             `json:"maxConcurrent,omitempty"` // 0 is the default
	MaxRate       float64         `json:"maxRate,omitempty"`       // 0 is no limit
	// Stored is nil for a destination of the configuration file, which this API cannot change, and for
	// one of a tenant.
	Stored    *Stored              `json:"stored,omitempty"`
	Settings  *DestinationSettings `json:"settings,omitempty"` // the other settings; listings leave them out
	Held      *webhook.Hold        `json:"held,omitempty"`     // why its deliveries wait although they are due
	Failure   *webhook.Failure     `json:"failure,omitempty"`  // the latest failed attempt; later attempts may have succeeded
	Waiting   int                  `json:"waiting"`
	Oldest    time.Time            `json:"oldest,omitzero"`
	Next      time.Time            `json:"next,omitzero"` // when the next attempt is due, if a delivery waits
	InFlight  int                  `json:"inFlight"`
	Since     time.Time            `json:"since,omitzero"` // when the counts below began
	Delivered int64                `json:"delivered"`
	Retried   int64                `json:"retried"`
	Filtered  int64                `json:"filtered"` // calls that the destination's filter left out
	Dead      map[string]int64     `json:"dead"`     // deliveries given up since Since, by reason
	// DeadLetters counts the dead letters in the store, some seconds ago. It is nil if there are
	// too many to count them often.
	DeadLetters *int             `json:"deadLetters,omitempty"`
	Errors      map[string]int64 `json:"errors"` // failed requests of the last hour, by reason
	Latency     webhook.Latency  `json:"latency"`
	Rates       Rates            `json:"rates"`
}

// Stored describes a destination that the store keeps.
type Stored struct {
	Changed time.Time `json:"changed"` // the last time
	By      string    `json:"by"`      // the parameter "by" of the change
	Version string    `json:"version"` // a number, to be sent as the parameter "version"
}

// DestinationSettings has settings under the keys of a document, without those at their default, and
// without endpoints, which the Destination has.
type DestinationSettings struct {
	webhook.Settings
	Endpoints       []ShownEndpoint `json:"endpoints,omitempty"`
	Sources         []string        `json:"sources"`         // the names of all sources
	StandardSecrets int             `json:"standardSecrets"` // how many are valid
}

// NewSecret has a new secret for Standard Webhooks, which no other answer contains.
type NewSecret struct {
	Secret string `json:"secret"`
	Valid  int    `json:"valid"` // how many secrets are valid now, including this one
}

// A ShownEndpoint is a webhook.Endpoint without what may be secret: user, query and fragment of the
// URL, and the values of headers.
type ShownEndpoint struct {
	URL     string   `json:"url"`
	Headers []string `json:"headers,omitempty"` // names only
}

// A Series has numbers over time, for one destination or for all. The numbers at index i belong to
// the step that begins at Start + i*Step; Waiting is the number at the end of that step. A null is
// unknown, as before the start.
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

// Names identify a delivery.
type Names struct {
	Destination string `json:"destination"`
	ID          string `json:"id"`               // the messageId
	Source      string `json:"source,omitempty"` // of the call; empty if the application forwarded the event itself
	User        string `json:"user,omitempty"`   // the userId
	Event       string `json:"event,omitempty"`  // the event of a track, the name of a page or screen
	Type        string `json:"type"`             // track, identify, ...
}

// An Event is something that happened to a delivery.
type Event struct {
	Seq  uint64    `json:"seq"` // increases with each event of the process
	At   time.Time `json:"at"`
	Kind string    `json:"kind"` // accepted, attempt, delivered, dead

	Names
	Attempt *webhook.Attempt `json:"attempt,omitempty"` // for the kind attempt
	Outcome string           `json:"outcome,omitempty"` // for the kind attempt: delivered, retryable, permanent, cut_off
	Due     time.Time        `json:"due,omitzero"`      // when the next attempt is due
	Reason  string           `json:"reason,omitempty"`  // for the kind dead
	Body    json.RawMessage  `json:"body,omitempty"`    // for the kind accepted
}

// The query parameters. Most select the objects whose field of the same name has the given value. "q"
// is a text in the name, in upper or lower case; for events in the id or the body. "kind" and "state"
// may be repeated, "destination" for deliveries, and "source" for a deletion.
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
	ParamAllowShrink = "allowShrink"
	ParamOverlap     = "overlap"
	ParamFor         = "for"
	ParamLasts       = "lasts"
)

// Events has the latest events that the server keeps in memory, newest first.
type Events struct {
	Events []Event `json:"events"`
	// Seq is the number of the latest event, even if the parameters do not select that event.
	Seq uint64 `json:"seq"`
}

// Live is one line of the live stream: an event, or how many events the server left out, because
// the reader was too slow or there were too many; see package feed. Skipped also counts events that
// the filter would not select. The stream begins with the next event, or with the one after the Seq
// in the parameter "after".
type Live struct {
	Event   *Event `json:"event,omitempty"`
	Skipped int64  `json:"skipped,omitempty"`
}

// A Delivery is what is known of a delivery. Listings leave out its Body, and all Attempts but the
// latest. A dead delivery without a Key was retried or discarded, and nothing has happened to it
// since.
type Delivery struct {
	Key string `json:"key,omitempty"` // see KeyOf; empty if it comes from the memory of the server, not from the store
	Names
	// WebhookID is what the receiver sees, but for bytes that may not stand in a header. Empty as Key.
	WebhookID   string            `json:"webhookId,omitempty"`
	State       webhook.State     `json:"state"`
	Accepted    time.Time         `json:"accepted,omitzero"`
	Due         time.Time         `json:"due,omitzero"`     // when the next attempt is due
	Expires     time.Time         `json:"expires,omitzero"` // when it is given up; unknown before the first attempt
	Ended       time.Time         `json:"ended,omitzero"`   // when it was delivered or given up
	Reason      string            `json:"reason,omitempty"` // why it was given up
	Tries       int               `json:"tries"`
	TraceParent string            `json:"traceparent,omitempty"`
	Attempts    []webhook.Attempt `json:"attempts"` // the first and the latest that are known, oldest first
	Body        json.RawMessage   `json:"body,omitempty"`
}

// DeliveryOf converts a delivery of the store.
func DeliveryOf(r *webhook.Record) Delivery {
	d := Delivery{
		Key:       KeyOf(r.Ref()),
		Names:     Names{Destination: r.Destination, ID: r.MessageID, Source: r.Source, User: r.User, Event: r.Event, Type: r.Type},
		WebhookID: r.ID, State: r.State, Accepted: r.Accepted.UTC(), Ended: r.At.UTC(), Reason: string(r.Reason),
		Tries: r.Tries, TraceParent: r.Trace.Parent, Attempts: append([]webhook.Attempt{}, r.Attempts...), Body: r.Body,
	}
	if r.State == webhook.StateWaiting || r.State == webhook.StateClaimed {
		d.Due, d.Expires = r.Due.UTC(), r.Expires.UTC()
	}
	return d
}

// KeyOf returns the key of a delivery: its destination, a colon, and its number in base 36.
func KeyOf(r webhook.Ref) string { return r.Destination + ":" + Cursor(r.Seq) }

// ParseKey returns the delivery that a key names.
func ParseKey(key string) (r webhook.Ref, err error) {
	colon := strings.LastIndexByte(key, ':')
	if colon >= 0 {
		r.Destination = key[:colon]
		r.Seq, err = ParseCursor(key[colon+1:])
	}
	if colon <= 0 || err != nil {
		return r, fmt.Errorf("%q is not the key of a delivery, such as crm:k3f9", key)
	}
	return r, nil
}

// Cursor returns the Page.After with which the next page begins after the delivery with this
// number, or "" for 0.
func Cursor(seq uint64) string {
	if seq == 0 {
		return ""
	}
	return strconv.FormatUint(seq, 36)
}

// ParseCursor returns the number in a Cursor.
func ParseCursor(text string) (uint64, error) { return strconv.ParseUint(text, 36, 64) }

// Changed counts the waiting deliveries that a request changed.
type Changed struct {
	Changed int `json:"changed"`
	Claimed int `json:"claimed"` // not changed, because they are being attempted
}

// The orders of deliveries.
const (
	OrderOldest = "oldest"
	OrderNewest = "newest"
)

// Count is how many deliveries a query selects.
type Count struct {
	Count   int  `json:"count"`
	Stopped bool `json:"stopped,omitempty"` // counting took too long: there may be more
}

// A Selection names deliveries to retry or discard, either by Keys or by Query. A Query without
// states selects dead letters.
type Selection struct {
	Keys  []string       `json:"keys,omitempty"`
	Query *webhook.Query `json:"query,omitempty"`
}

// Progress is one line of the stream that answers a long request, sent every second. A stream whose
// last line has neither Ended nor an Error was cut. If the request uploads users, Done counts those
// that the server has read; after an Error, the work for the last 2,048 of them may be missing. A
// client can repeat the request to do the rest.
type Progress struct {
	Done    int    `json:"done"`
	Total   int    `json:"total,omitempty"` // 0 if the total is unknown
	Ended   bool   `json:"ended,omitempty"`
	Claimed int    `json:"claimed,omitempty"` // deliveries that were skipped because they are being attempted
	Joined  int    `json:"joined,omitempty"`  // users that joined, for a sync
	Left    int    `json:"left,omitempty"`    // users that left, for a sync
	Error   *Error `json:"error,omitempty"`   // why the work ended early; items that were done stay done
}

// A TestRequest asks the server to send sample calls at once, without storing them. Exactly one of
// Destination, URL and Document is set.
type TestRequest struct {
	Destination string `json:"destination,omitempty"` // its endpoints, headers and secrets are used
	URL         string `json:"url,omitempty"`
	// Document has settings under the keys of the configuration file, with certificates as PEM.
	Document map[string]any `json:"document,omitempty"`
	// Types are types of calls; an empty list means all six. For the destination of a tenant they
	// are any types of events, and an empty list means webhook.test.
	Types  []string `json:"types,omitempty"`
	Event  string   `json:"event,omitempty"`  // the name in track, page and screen calls; empty means the sample's own name
	Source string   `json:"source,omitempty"` // a source; its filter is checked, too, beside the destination's
}

// TestResult has an Exchange for each type of call with each endpoint.
type TestResult struct {
	Exchanges []Exchange `json:"exchanges"`
}

// An Exchange is one request and its answer.
type Exchange struct {
	Filtered  bool            `json:"filtered,omitempty"` // a filter would leave this call out, but the test has sent it
	Type      string          `json:"type"`
	Endpoint  string          `json:"endpoint"`
	Headers   []Header        `json:"headers"` // headers of the request, without credentials
	Body      json.RawMessage `json:"body"`
	Signature string          `json:"signature,omitempty"` // the header X-Signature
	Status    int             `json:"status"`
	Answer    string          `json:"answer,omitempty"` // the first bytes of the answer
	Got       []Header        `json:"got,omitempty"`    // headers of the answer
	Reason    string          `json:"reason,omitempty"`
	Error     string          `json:"error,omitempty"`
	Outcome   string          `json:"outcome"`
	Timing    Timing          `json:"timing"`
}

// Header is one HTTP header.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Timing has the times since the start of the request. 0 means unknown.
type Timing struct {
	Resolved  webhook.Millis `json:"resolved,omitempty"`
	Connected webhook.Millis `json:"connected,omitempty"`
	Secured   webhook.Millis `json:"secured,omitempty"`
	FirstByte webhook.Millis `json:"firstByte,omitempty"`
	Total     webhook.Millis `json:"total"`
}

// Erasure asks the server to remove the data of a user from its store. Destinations are not told.
type Erasure struct {
	User string `json:"user"`
}

// Erased counts the deliveries and dead letters that were removed.
type Erased struct {
	Erased  int `json:"erased"`
	Claimed int `json:"claimed"` // not removed, because they are being attempted
}

// Deletion asks the server to tell destinations that they must delete users. For many users, a
// client sends a body of LinesType instead, and the id and the sources as query parameters.
type Deletion struct {
	// ID marks repeated requests for the same deletion. If it is empty, the server makes one up.
	ID      string   `json:"id,omitempty"`
	Users   []string `json:"users"`
	Sources []string `json:"sources,omitempty"` // the sources whose enabled destinations are told; none means all sources
}

// An Audience is a named set of users of a destination, which is told who joins and leaves. Requests
// may use its name, such as "VIP Users", or its trait, such as vip_users.
type Audience struct {
	Destination string `json:"destination"`
	Name        string `json:"name"`
	Trait       string `json:"trait,omitempty"`      // the name that the destination gets
	Generation  uint64 `json:"generation,omitempty"` // how many times it was synced
}

// TenantSettings are the settings of a new tenant. A request that changes one has some of their keys,
// with null for the default.
type TenantSettings struct {
	ID       string `json:"id,omitempty"` // of a new tenant
	Name     string `json:"name,omitempty"`
	Disabled bool   `json:"disabled,omitempty"`
}

// TokenSettings are the settings of a new token.
type TokenSettings struct {
	Name string `json:"name"`
}

// A NewToken has the text of a token, which no other answer contains.
type NewToken struct {
	Token tenants.Token `json:"token"`
	Text  string        `json:"text"`
}

// A PortalLink opens the page with the webhooks of a tenant, for everybody who has the link.
type PortalLink struct {
	URL  string    `json:"url"` // no other answer contains it
	Ends time.Time `json:"ends"`
}

// LinkID returns the id of the link with a text. The id is in the path of the link, and reveals
// nothing of the text.
func LinkID(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:10])
}

// A TenantDestination is a destination of a tenant.
type TenantDestination struct {
	tenants.Destination
	Endpoints []ShownEndpoint `json:"endpoints"`
	Held      *webhook.Hold   `json:"held,omitempty"` // why its deliveries wait although they are due
	// OldSecrets has the times when old secrets stop signing; only in the answer about one destination.
	OldSecrets []time.Time `json:"oldSecrets,omitempty"`
}

// TenantDestinationSettings are the settings of a new destination. A request that changes one has
// some of their keys, with null for the default.
type TenantDestinationSettings struct {
	Name string `json:"name,omitempty"`
	webhook.Settings
	Secret string `json:"secret,omitempty"` // of a new one; empty means that the server makes it
}

// A NewTenantDestination has the newest secret of a destination, which no other answer contains.
type NewTenantDestination struct {
	Destination TenantDestination `json:"destination"`
	Secret      string            `json:"secret"`
}

// A TenantEvent is an event for the destinations of a tenant; see event.Custom.
type TenantEvent struct {
	Type      string          `json:"type"`
	Data      json.RawMessage `json:"data"`
	ID        string          `json:"id,omitempty"`
	Timestamp time.Time       `json:"timestamp,omitzero"` // when it happened; by default when it was received
	User      string          `json:"user,omitempty"`
	Key       string          `json:"key,omitempty"`
}

// Published says what became of events, in their order.
type Published struct {
	Events []PublishedEvent `json:"events"`
}

// A PublishedEvent says for how many destinations an event is stored, is a duplicate, and is left out
// by their filters.
type PublishedEvent struct {
	Result     string `json:"result"` // one of the results below
	Stored     int    `json:"stored"`
	Duplicates int    `json:"duplicates"`
	Filtered   int    `json:"filtered"`
}

// The results of a PublishedEvent. The first that applies counts: the event is stored for a
// destination, it is a duplicate for a destination, all filters leave it out, or the tenant has no
// destination.
const (
	ResultStored    = "stored"
	ResultDuplicate = "duplicate"
	ResultFiltered  = "filtered"
	ResultNobody    = "nobody"
)
