package store

// Reason says why an attempt failed, or why a delivery was given up. There are no reasons but those
// below, so a Reason can be a label of a metric.
type Reason string

const (
	ReasonTimeout     Reason = "timeout"      // no complete answer within the time of one attempt
	ReasonDNS         Reason = "dns"          // the host's name could not be resolved
	ReasonConnection  Reason = "connection"   // refused, reset, closed or unreachable, or not made by Config.Proxy
	ReasonProtocol    Reason = "protocol"     // the answer is not HTTP, or exceeds a size limit
	ReasonRedirect    Reason = "redirect"     // the answer was 3xx, and redirects are not followed
	ReasonThrottled   Reason = "throttled"    // the answer was 408, 425 or 429
	ReasonRefused     Reason = "refused"      // the answer was another 4xx
	ReasonServerError Reason = "server_error" // the answer was 5xx, or of no known class

	// The next three say that no request was sent. ReasonAuthorize is that Destination.Authorize failed,
	// panicked, took all the time of the attempt or returned a header that it may not set.
	ReasonCertificate Reason = "certificate" // it does not verify, or this machine cannot read its roots
	ReasonAddress     Reason = "address"     // the address guard refused the endpoint's address
	ReasonAuthorize   Reason = "authorize"

	ReasonExpired  Reason = "expired"  // the retry window ended before an endpoint took the delivery
	ReasonDisabled Reason = "disabled" // the forwarder has disabled the destination, with Config.BuryDisabled

	ReasonNoEndpoint Reason = "no_endpoint" // the Directory says that the destination takes nothing
	ReasonBacklog    Reason = "backlog"     // too much waited for the destination, or for too long
)

// Lapsed reports whether the delivery was given up because it waited for too long. The deliveries
// behind it are then released with their own Due: see Store.
func (r Reason) Lapsed() bool { return r == ReasonExpired || r == ReasonBacklog }

// Reasons returns all reasons, those of failed attempts first.
func Reasons() []Reason {
	return []Reason{
		ReasonTimeout, ReasonDNS, ReasonConnection, ReasonProtocol, ReasonRedirect, ReasonThrottled, ReasonRefused,
		ReasonServerError, ReasonCertificate, ReasonAddress, ReasonAuthorize, ReasonExpired, ReasonDisabled, ReasonNoEndpoint, ReasonBacklog,
	}
}
