package config

import "reflect"

// Keep gives each unchanged destination the Webhook pointer of the same destination in old, the
// settings in use. A forwarder recognises an unchanged destination by this pointer.
func (s *Settings) Keep(old *Settings) {
	for i := range s.Destinations {
		d := &s.Destinations[i]
		before := old.Destination(d.ID)
		if before == nil {
			continue
		}
		is, was := *d, *before
		is.Webhook, was.Webhook = nil, nil
		if reflect.DeepEqual(is, was) {
			d.Webhook = before.Webhook
		}
	}
}

// NeedRestart returns the keys whose new values take effect only after a restart. The argument old
// has the settings that the server was started with. The content of a listener's certificate needs
// no restart, but switching TLS on or off does.
func (s *Settings) NeedRestart(old *Settings) []string {
	var keys []string
	var compare func(key string, is, was reflect.Value)
	compare = func(key string, is, was reflect.Value) {
		for i := range is.NumField() {
			field, is, was := is.Type().Field(i), is.Field(i), was.Field(i)
			key := under(key, field.Tag.Get("yaml"))
			switch {
			case field.Tag.Get("restart") == "" && is.Kind() == reflect.Struct:
				compare(key, is, was)
			case field.Tag.Get("restart") == "":
			case is.Kind() == reflect.Pointer && is.IsNil() != was.IsNil(),
				is.Kind() != reflect.Pointer && !reflect.DeepEqual(is.Interface(), was.Interface()):
				keys = append(keys, key)
			}
		}
	}
	compare("", reflect.ValueOf(s).Elem(), reflect.ValueOf(old).Elem())
	return keys
}
