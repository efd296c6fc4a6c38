package main

// Session keys: signs the member's events, so that no other client can forge them [GRAMMAR 10].

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"log"
	"os"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Keyring is a file of keys, read again for every event. A nil Keyring signs nothing.
type Keyring struct {
	path    string
	keys    []Key // as of the last time the file could be read
	problem string
}

// Key is a secret shared with the coordinator.
type Key struct {
	ID, Algorithm   string
	Secret          []byte // base64 in the file
	FromMs          int64  `json:"from_ms"`
	UntilMs         *int64 `json:"until_ms"`
	Groups, Callers []string
}

type algorithm struct {
	number byte
	hash   func() hash.Hash
}

var algorithms = map[string]algorithm{
	"HmacSHA256": {1, sha256.New},
	"HmacSHA384": {2, sha512.New384},
	"HmacSHA512": {3, sha512.New},
}

func openKeyring(path string) (*Keyring, error) {
	if path == "" {
		return nil, nil
	}
	keys, err := readKeys(path)
	return &Keyring{path: path, keys: keys}, err
}

func readKeys(path string) ([]Key, error) {
	data, err := os.ReadFile(path)
	var file struct{ Keys []Key }
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	for i := range file.Keys {
		key := &file.Keys[i]
		key.Algorithm = cmp.Or(key.Algorithm, "HmacSHA256")
		if _, known := algorithms[key.Algorithm]; !known && err == nil {
			err = fmt.Errorf("key %s: no algorithm %s", key.ID, key.Algorithm)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s is no readable keyring: %w", path, err)
	}
	return file.Keys, nil
}

// sign adds the signature header to a record.
func (k *Keyring) sign(record *kgo.Record, nowMs int64) error {
	if k == nil {
		return nil
	}
	problem := ""
	if keys, err := readKeys(k.path); err != nil {
		problem = err.Error()
	} else {
		k.keys = keys
	}
	if problem != "" && problem != k.problem {
		log.Printf("the keys read before stay in force: %s", problem)
	}
	k.problem = problem
	key := signer(k.keys, string(record.Key), nowMs)
	if key == nil {
		return fmt.Errorf("no key of %s signs for a member of group %s now", k.path, record.Key)
	}
	signature := key.signature(record.Topic, record.Key, record.Value, nowMs)
	record.Headers = append(record.Headers, kgo.RecordHeader{Key: "signature", Value: signature})
	return nil
}

// signer is the newest key that signs for a member of a group; nil = there is none.
func signer(keys []Key, group string, nowMs int64) (newest *Key) {
	names := func(pattern string) bool {
		start, open := strings.CutSuffix(pattern, "*")
		return pattern == group || open && strings.HasPrefix(group, start)
	}
	for i := range keys {
		key := &keys[i]
		fits := key.FromMs <= nowMs && (key.UntilMs == nil || nowMs <= *key.UntilMs) &&
			(key.Callers == nil || slices.Contains(key.Callers, "member")) &&
			(key.Groups == nil || slices.ContainsFunc(key.Groups, names))
		if fits && (newest == nil || cmp.Or(cmp.Compare(key.FromMs, newest.FromMs), cmp.Compare(key.ID, newest.ID)) > 0) {
			newest = key
		}
	}
	return newest
}

// signature is the header of a record; a value of nil is a tombstone.
func (k *Key) signature(topic string, key, value []byte, signedMs int64) []byte {
	algorithm := algorithms[k.Algorithm]
	head := binary.BigEndian.AppendUint64([]byte{1, algorithm.number}, uint64(signedMs))
	head = append(append(head, byte(len(k.ID))), k.ID...)
	signed := binary.BigEndian.AppendUint32([]byte("muster"), uint32(len(topic)))
	signed = binary.BigEndian.AppendUint32(append(signed, topic...), uint32(len(key)))
	signed = append(append(signed, key...), head...)
	if value == nil {
		signed = append(signed, 0)
	} else {
		signed = append(append(signed, 1), value...)
	}
	mac := hmac.New(algorithm.hash, k.Secret)
	mac.Write(signed)
	return mac.Sum(head)
}
