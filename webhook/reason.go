package webhook

// Reason says why an attempt failed, or why a delivery was given up. The list
// is closed, so that it can label counters.
type Reason string

// The reasons.
const (
	// ReasonTimeout: no complete answer within the time of one attempt.
	ReasonTimeout Reason = "timeout"
	// ReasonDNS: the host's name could not be resolved.
	ReasonDNS Reason = "dns"
	// ReasonConnection: the connection was refused, reset, closed or
	// unreachable, or Config.Proxy did not make it.
	ReasonConnection Reason = "connection"
	// ReasonProtocol: what came back is not HTTP, or over a bound.
	ReasonProtocol Reason = "protocol"
	// ReasonCertificate: the endpoint's certificate does not verify, or the
	// machine's authorities cannot be read; no request was sent.
	ReasonCertificate Reason = "certificate"
	// ReasonAddress: the address guard refused the endpoint's address; no
	// request was sent.
	ReasonAddress Reason = "address"
	// ReasonAuthorize: Destination.Authorize failed, panicked, took all the time of the
	// attempt or set a header that it may not; no request was sent.
	ReasonAuthorize Reason = "authorize"
	// ReasonRedirect: the answer was 3xx, and redirects are not followed.
	ReasonRedirect Reason = "redirect"
	// ReasonThrottled: the answer was 408, 425 or 429.
	ReasonThrottled Reason = "throttled"
	// ReasonRefused: the answer was another 4xx.
	ReasonRefused Reason = "refused"
	// ReasonServerError: the answer was 5xx, or of no known class.
	ReasonServerError Reason = "server_error"
	// ReasonExpired: the window ended before an endpoint took the delivery.
	ReasonExpired Reason = "expired"
	// ReasonDisabled: the forwarder has disabled the destination, and Config.BuryDisabled is set.
	ReasonDisabled Reason = "disabled"
)

// final reports whether a delivery that was given up for r was refused for good,
// whatever else would have been tried.
func (r Reason) final() bool {
	switch r {
	case ReasonCertificate, ReasonAddress, ReasonRedirect, ReasonRefused:
		return true
	}
	return false
}
