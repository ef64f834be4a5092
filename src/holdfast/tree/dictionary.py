"""The dictionary with which small blocks are compressed.

A commit writes a block of a few hundred bytes, in which compression finds little to refer to. The dictionary contains
what such blocks have in common: field names of messages, model answers, tool calls, errors and checkpoints, in the
encoding of `codec`. A block refers to it as if it preceded the block; its end costs least to refer to.

Invariant: these bytes never change. A better dictionary is another one, for blocks with a marker of their own.
"""

WORDS = (
    b'\x85\xa9traceback\xd9+Traceback (most recent call last):\n  File "\xa4type\xb3builtins.ValueErro'
    b"r\xa7message\xa0\xa5cause\xc0\xa7context\xc0\xc7e\x18\x92\xb2langchain.Document\x94\x84\xa2id\xc0"
    b"\xa8metadata\x81\xa6source\xa0\xacpage_content\xa1x\xa4type\xa8Document\xc7\x17\x04\x92\xa8metada"
    b"ta\xacpage_content\xc0\xc0\xde\x00\x10\xa8headline\xa0\xa5title\xa0\xabdescription\xa0\xa7summary"
    b"\xa0\xa3url\xachttps://www.\xa4date\xaa2026-01-01\xa5score\xcb?\xe0\x00\x00\x00\x00\x00\x00\xa5in"
    b"dex\x00\xa5count\x01\xa4name\xa0\xa5value\x01\xa3key\xa0\xa4data\x80\xa5items\x90\xa5error\xc0"
    b"\xa6status\xa9completed\x84\xa4type\xa7message\xa4role\xa9assistant\xa6status\xa9completed\xa7con"
    b"tent\x91\x84\xa4type\xaboutput_text\xa4text\xa0\xabannotations\x90\xa8logprobs\x90\x84\xa4type"
    b'\xadfunction_call\xa7call_id\xa5call_\xa4name\xa0\xa9arguments\xab{"query": "\x83\xa4type\xb4f'
    b"unction_call_output\xa7call_id\xa5call_\xa6output\xa0\x83\xa4type\xa9reasoning\xa7summary\x90\xa2"
    b"id\xa3rs_\x82\xa4role\xa4user\xa7content\x91\x82\xa4type\xa4text\xa4text\xa0\x84\xa4type\xa8tool_"
    b"use\xa2id\xa6toolu_\xa4name\xa0\xa5input\x80\x84\xa4type\xabtool_result\xabtool_use_id\xa6toolu_"
    b"\xa7content\xa0\xa8is_error\xc2\x83\xa5model\xa0\xabstop_reason\xa8end_turn\xa5usage\x86\xacinput"
    b"_tokens\x01\xadoutput_tokens\x01\xb7cache_read_input_tokens\x00\xadprompt_tokens\x01\xb1completio"
    b"n_tokens\x01\xactotal_tokens\x01\x83\xa4role\xa9assistant\xa7content\xc0\xaatool_calls\x91\x83"
    b'\xa2id\xa5call_\xa4type\xa8function\xa8function\x82\xa4name\xa0\xa9arguments\xa2{"\x84\xa4role'
    b"\xa4tool\xactool_call_id\xa5call_\xa4name\xa0\xa7content\xa0\x82\xa4role\xa6system\xa7content\xbc"
    b"You are a helpful assistant.\x82\xa4role\xa4user\xa7content\xa4What\x8b\xa5model\xa0\xa6prompt"
    b"\xa0\xa6tokens\x01\xa4cost\xcb?\xb9\x99\x99\x99\x99\x99\x9a\xa4step\xa0\xa6result\xc0\xa5state"
    b"\x80\xa4plan\x90\xa4done\xc2\xa7history\x90\xa5tasks\x90\x82\xa4args\x90\xa6kwargs\x80\x82\xa4pat"
    b"h\xb0~__pregel_push, \xa6writes\x83\xff\x92\xa9__error__\x01\xfd\x92\xad__interrupt__\x91\x82\xa5"
    b"value\xa0\xa2id\xa0\xfc\x92\xaa__resume__\x90\x85\xbdcounters_since_delta_snapshot\x80\xa9thread_"
    b"id\xa0\xa6run_id\xd9$00000000-0000-0000-0000-000000000000\xaelanggraph_node\xa0\xa7user_id\xa0"
    b"\xc7\x8a\x18\x92\xb7langchain.SystemMessage\x94\x86\xa7content\xbcYou are a helpful assistant."
    b"\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa6system\xa4name\xc0\xa2id\xc0\xc7\t"
    b"\x04\x91\xa7content\x80\xc0\xc7\xa8\x18\x92\xb5langchain.ToolMessage\x94\x89\xa7content\xa0\xb1ad"
    b"ditional_kwargs\x80\xb1response_metadata\x80\xa4type\xa4tool\xa4name\xa0\xa2id\xc0\xactool_call_i"
    b"d\xa5call_\xa8artifact\xc0\xa6status\xa7success\xc7\x1b\x04\x93\xa4name\xa7content\xactool_call_i"
    b"d\x80\xc0\xc7\xa0\x18\x92\xb6langchain.HumanMessage\x94\x86\xa7content\xacWhat is the \xb1additio"
    b"nal_kwargs\x80\xb1response_metadata\x80\xa4type\xa5human\xa4name\xc0\xa2id\xd9$00000000-0000-0000"
    b"-0000-000000000000\xc7\x0c\x04\x92\xa2id\xa7content\x80\xc0\xc8\x01\x8d\x18\x92\xb3langchain.AIMe"
    b"ssage\x94\x89\xa7content\xa0\xb1additional_kwargs\x80\xb1response_metadata\x83\xadfinish_reason"
    b"\xaatool_calls\xaamodel_name\xa0\xabtoken_usage\x80\xa4type\xa2ai\xa4name\xc0\xa2id\xc0\xaatool_c"
    b"alls\x91\x84\xa4name\xa0\xa4args\x81\xa5query\xa0\xa2id\xa5call_\xa4type\xa9tool_call\xb2invalid_"
    b"tool_calls\x90\xaeusage_metadata\x85\xacinput_tokens\x01\xadoutput_tokens\x01\xactotal_tokens\x02"
    b"\xb3input_token_details\x81\xaacache_read\x00\xb4output_token_details\x81\xa9reasoning\x00\xc75"
    b"\x04\x94\xa7content\xaatool_calls\xaeusage_metadata\xb1response_metadata\x80\xc0\x82\xa4path\xb5~"
    b"__pregel_pull, agent\xa6writes\x82\x00\x92\xa8messages\x91\xc7\xc2\x18\x92\xb3langchain.AIMessage"
    b"\x94\x89\xa7content\xa4The \xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa2ai\xa4na"
    b"me\xc0\xa2id\xd9$00000000-0000-0000-0000-000000000000\xaatool_calls\x90\xb2invalid_tool_calls\x90"
    b"\xaeusage_metadata\xc0\xc7\x0c\x04\x92\xa2id\xa7content\x80\xc0\x01\x92\xafbranch:to:tools\xc0"
    b"\x87\xa1v\x04\xa2ts\xd9 2026-11-18T06:50:59.159068+00:00\xa2id\xa31f1\xb0channel_versions\x83\xa9"
    b"__start__\x02\xa8messages\x05\xafbranch:to:agent\x05\xadversions_seen\x84\xa9__input__\x80\xa9__s"
    b"tart__\x81\xa9__start__\x01\xa5agent\x81\xafbranch:to:agent\x05\xa5tools\x80\xb0updated_channels"
    b"\x92\xafbranch:to:agent\xa8messages\xa9parent_id\xa31f1\x83\xaechannel_values\x82\xa8messages\x00"
    b"\xafbranch:to:agent\xc0\xaacheckpoint\x01\xa8metadata\x83\xa6source\xa4loop\xa4step\x05\xa7parent"
    b"s\x80"
)
