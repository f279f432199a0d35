package analytics

import "testing"

// A Delivery that a test of OnDelivery made has no messages to yield.
func TestMessagesOfADeliveryMadeByHand(t *testing.T) {
	for _, d := range []Delivery{{}, {Count: 1}, {Count: 1, Reason: ReasonRejected, Err: ErrClosed}} {
		for message, err := range d.Messages() {
			t.Errorf("%+v yields %q, %v", d, message, err)
		}
	}
}
