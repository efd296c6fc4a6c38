package main

// Record keys [GRAMMAR 2]; the digest of the holding [7].

import "strings"

func keyOfWhole(key string) string {
	fields := strings.SplitN(key, "|", 3)
	switch {
	case len(fields) < 3:
		return key
	case fields[1] != "":
		return fields[0] + "|" + fields[1]
	case strings.HasPrefix(fields[2]+".", "names."):
		return fields[0] + "||names"
	}
	return fields[0]
}

func digestOf(task Task, role int) uint64 {
	name := uint64(0xcbf29ce484222325)
	for _, octet := range []byte(task.label) {
		name = (name ^ uint64(octet)) * 0x100000001b3
	}
	x := name + uint64(task.number+1)*0x9e3779b97f4a7c15 + uint64(role)*0xd1b54a32d192ed03
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
